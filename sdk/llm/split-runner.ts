import type { GpuRecorder } from '../backend.ts'
import { CallQueue } from '../calls.ts'
import type { Engine } from '../engine.ts'
import type { Session } from '../session/session.ts'
import type { SplitStep } from '../session/split-step.ts'
import { type Decoder, embed, finish, head, type Pass, placeTables, project } from './decoder.ts'
import type { Logits } from './logits.ts'
import { idBytes, rowsOf, takeBack } from './runner.ts'
import type { Workspace, Workspaces } from './workspace.ts'

/**
 * Decode steps on a GPU whose rows are on the host: one submit and one wait a layer, and what follows the wait is recorded
 * while the device runs what comes before it.
 */
export class SplitRunner {
  constructor(
    private readonly engine: Engine,
    private readonly decoder: Decoder,
    private readonly recorder: GpuRecorder,
    private readonly workspaces: Workspaces,
    private readonly logits: Logits,
  ) {}

  /** As `Runner.step`; sessions whose rows are on the device may be among them. */
  async step(
    sessions: readonly Session[],
    ids: readonly number[],
    positions: readonly number[],
  ): Promise<Float32Array[]> {
    const { layers, vocabulary } = this.decoder.config
    const T = ids.length
    const { queue } = this.recorder.device
    const work = await this.workspaces.reserve(T, T)
    for (const session of sessions) await session.reserve(1)
    const { buffer, offset } = this.recorder.range(work.ids)
    queue.writeBuffer(buffer, offset, idBytes(ids))
    const bytes = T * vocabulary * 4
    const staging = this.logits.take(bytes)
    const queues = sessions.map(({ state }) => state.queue)
    let read = false
    let step: SplitStep | undefined
    try {
      for (let l = 0; l <= layers; l++) {
        // A snapshot that is captured, say: nothing can be recorded meanwhile.
        while (queues.some(({ busy }) => busy)) await CallQueue.runAll(queues, async () => {})
        const recorded = this.record(sessions, work, { kind: 'step', positions }, l, step)
        try {
          if (l === layers) this.copyLogits(recorded.encoder, work, staging, bytes)
          const commands = recorded.encoder.finish()
          await step?.fetch()
          queue.submit([commands])
          step?.release(true)
          recorded.release(true)
          step = recorded.next
        } catch (error) {
          recorded.release()
          recorded.next?.release()
          throw error
        }
      }
      read = true
      return rowsOf(await this.logits.read(staging, bytes), T)
    } catch (error) {
      step?.release()
      if (!read) this.logits.give(staging)
      for (const [t, session] of sessions.entries()) await takeBack(session, positions[t])
      throw error
    }
  }

  /** Records what lies between the choice of layer l − 1 and that of layer l. */
  private record(sessions: readonly Session[], work: Workspace, pass: Pass, l: number, step: SplitStep | undefined) {
    const { decoder, recorder } = this
    const T = sessions.length
    const encoder = recorder.device.createCommandEncoder()
    let next: SplitStep | undefined
    const release = recorder.recordInto(encoder, () => {
      if (step) {
        step.encodeAttend(
          encoder,
          sessions.map((_, t) => ({ output: this.part(work, 'attended', t) })),
        )
        finish(decoder, work, l - 1, pass)
      } else {
        placeTables(decoder, work, pass)
        embed(decoder, work, T)
      }
      if (l === decoder.config.layers) return head(decoder, work, T, T)
      project(decoder, work, l, pass)
      next = this.engine.encodeRetrieveBatch(
        encoder,
        sessions.map((session, t) => ({
          session,
          layer: l,
          queries: this.part(work, 'queries', t),
          append: { keys: this.part(work, 'keys', t), values: this.part(work, 'values', t), tokens: 1 },
        })),
      )
    })
    return { encoder, release, next }
  }

  /** Token t's part of an activation [T, heads, d]. */
  private part(work: Workspace, name: 'queries' | 'keys' | 'values' | 'attended', t: number) {
    const { queryHeads, kvHeads, headDim } = this.decoder.config
    const heads = name === 'queries' || name === 'attended' ? queryHeads : kvHeads
    const { buffer, offset } = this.recorder.range(work[name])
    return { buffer, offset: offset + t * heads * headDim * 4 }
  }

  private copyLogits(encoder: GPUCommandEncoder, work: Workspace, staging: GPUBuffer, bytes: number): void {
    const { buffer, offset } = this.recorder.range(work.logits)
    encoder.copyBufferToBuffer(buffer, offset, staging, 0, bytes)
  }
}
