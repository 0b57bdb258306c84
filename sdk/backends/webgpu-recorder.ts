import { MAX_JOBS, type ProgramName, type Spec } from '../../wgsl/programs.ts'
import { Arena } from './webgpu-arena.ts'
import type { DeviceState } from './webgpu-device.ts'
import type { GpuBuf } from './webgpu-memory.ts'
import type { Compiled, Pipelines } from './webgpu-pipelines.ts'
import type { Reach } from './webgpu-segments.ts'
import { PIECE, type Uploads } from './webgpu-uploads.ts'
import { join, type Piece, split, type Task, type Window } from './webgpu-windows.ts'

const ARENA = 1 << 18
/** Uploads up to this size travel with the jobs; larger ones go to the queue by themselves, or in mapped buffers. */
const STAGED = 1 << 14
/**
 * Above this size mapped buffers take the data. On an H200 the queue's own copy is as fast up to 2 MiB and holds the calling
 * thread 3 to 4 times as long from 3 MiB on; memory that is shared must be copied once more for it, which costs from here on.
 */
const MAPPED = 1 << 18
/** Dispatches after which a long recording is submitted, so that the device works while the rest is recorded. */
const AHEAD = 48

/** Records dispatches, copies and small uploads in order into one command encoder, submitted by `flush`. */
export class Recorder {
  private readonly device: GPUDevice
  private readonly pipelines: Pipelines
  private readonly state: DeviceState
  private readonly uploads: Uploads
  readonly reach: Reach
  private encoder: GPUCommandEncoder | undefined
  private pass: GPUComputePassEncoder | undefined
  private arena: Arena
  private readonly groups = new Map<string, GPUBindGroup>()
  /** Of callers' recordings that were submitted. */
  private readonly spare: Arena[] = []
  private disposed = false
  private caller: { arenas: Arena[]; buffers: GPUBuffer[] } | undefined

  constructor(device: GPUDevice, pipelines: Pipelines, state: DeviceState, uploads: Uploads, reach: Reach) {
    this.device = device
    this.pipelines = pipelines
    this.state = state
    this.uploads = uploads
    this.reach = reach
    this.arena = new Arena(device, pipelines.uniforms, ARENA)
  }

  /** Jobs of one program that do not depend on each other: as few dispatches as their buffers allow. */
  run(key: string, name: ProgramName, spec: Spec, tasks: readonly Task[]): void {
    const compiled = this.pipelines.get(key, name, spec)
    if (!compiled) return
    const pieces = tasks.flatMap((task) => (task.x > 0 ? split(name, task, this.reach.bytes) : []))
    for (let i = 0; i < pieces.length; ) {
      const batch = [pieces[i++]]
      let windows = batch[0].windows
      const whole = (piece: Piece) => piece.task.block0 === undefined
      while (whole(batch[0]) && i < pieces.length && batch.length < MAX_JOBS && pieces[i].heads === batch[0].heads) {
        if (!whole(pieces[i])) break
        const joined = join(windows, pieces[i].windows, this.reach.bytes)
        if (!joined) break
        windows = joined
        batch.push(pieces[i++])
      }
      this.dispatch(compiled, batch, windows)
    }
    if (this.dispatches >= AHEAD && !this.caller) this.flush()
  }

  private dispatch(compiled: Compiled, batch: readonly Piece[], windows: readonly Window[]): void {
    const { sizes, floats } = compiled
    const at = this.reserve(batch.length * floats.length * 4)
    const { u32, f32 } = this.arena
    let x = 0
    for (const { task } of batch) x = Math.max(x, task.x)
    const folds = Math.ceil(x / this.reach.groups)
    const gx = Math.ceil(x / folds)
    for (let j = 0; j < batch.length; j++) {
      const { task, head0, heads } = batch[j]
      let word = at / 4 + j * floats.length
      for (let i = 0; i < task.fields.length; i++) {
        if (floats[i]) f32[word++] = task.fields[i]
        else u32[word++] = task.fields[i]
      }
      for (let i = 0; i < windows.length; i++) u32[word++] = (task.bind[i].buf.offset - windows[i].start) / sizes[i]
      u32[word++] = head0
      u32[word++] = heads
      u32[word++] = gx
      u32[word++] = task.block0 ?? 0
    }
    const pass = this.computePass()
    pass.setPipeline(compiled.pipeline)
    pass.setBindGroup(0, this.group(compiled, windows))
    pass.setBindGroup(1, this.arena.group, [at])
    this.dispatches++
    pass.dispatchWorkgroups(gx, batch[0].heads * folds, batch.length)
  }

  private group({ layout, modes }: Compiled, windows: readonly Window[]): GPUBindGroup {
    let key = modes
    for (const { buf, start, end } of windows)
      key += start === 0 && end === buf.slab.size ? ` ${buf.slab.id}` : ` ${buf.slab.id}:${start}:${end}`
    const known = this.groups.get(key)
    if (known) return known
    const entries = windows.map(({ buf, start, end }, binding) => ({
      binding,
      resource: { buffer: buf.gpu, offset: start, size: end - start },
    }))
    const group = this.device.createBindGroup({ layout, entries })
    if (this.groups.size > 4096) this.groups.clear()
    this.groups.set(key, group)
    return group
  }

  private reserve(bytes: number): number {
    const at = this.arena.take(bytes)
    if (at !== undefined) return at
    if (this.caller) this.arena = this.ownArena(this.caller)
    else this.flush()
    return this.arena.take(bytes) ?? 0
  }

  private computePass(): GPUComputePassEncoder {
    this.pass ??= this.open().beginComputePass()
    return this.pass
  }
  private open(): GPUCommandEncoder {
    this.encoder ??= this.device.createCommandEncoder()
    return this.encoder
  }
  /** The encoder, between passes. */
  private between(): GPUCommandEncoder {
    this.pass?.end()
    this.pass = undefined
    return this.open()
  }

  copy(src: GPUBuffer, from: number, dst: GPUBuffer, to: number, bytes: number): void {
    if (bytes === 0 || this.pipelines.collecting) return
    if (src !== dst) {
      this.between().copyBufferToBuffer(src, from, dst, to, bytes)
      return
    }
    const way = this.device.createBuffer({ size: bytes, usage: 0x04 | 0x08 })
    this.between().copyBufferToBuffer(src, from, way, 0, bytes)
    this.between().copyBufferToBuffer(way, 0, dst, to, bytes)
    if (this.caller) this.caller.buffers.push(way)
    else {
      this.flush()
      way.destroy()
    }
  }

  clear(buf: GpuBuf): void {
    if (!this.pipelines.collecting) this.between().clearBuffer(buf.gpu, buf.offset, buf.bytes)
  }

  write(buf: GpuBuf, offset: number, data: Uint8Array): void {
    if (this.pipelines.collecting) return
    const { buffer, byteOffset, byteLength } = data
    for (let at = 0; at < byteLength; at += PIECE) {
      const piece = new Uint8Array(buffer, byteOffset + at, Math.min(PIECE, byteLength - at))
      this.put(buf.gpu, buf.offset + offset + at, piece)
    }
  }

  /** At most `PIECE` bytes, by the fastest way for their size. */
  private put(to: GPUBuffer, offset: number, data: Uint8Array): void {
    const { byteLength } = data
    if (byteLength <= STAGED && this.encoder) {
      const at = this.reserve(byteLength)
      new Uint8Array(this.arena.data, at, byteLength).set(data)
      this.between().copyBufferToBuffer(this.arena.gpu, at, to, offset, byteLength)
      return
    }
    if (this.caller) {
      const stage = this.device.createBuffer({ size: byteLength, usage: 0x04 | 0x08 })
      this.caller.buffers.push(stage)
      this.device.queue.writeBuffer(stage, 0, this.uploads.queueable(data))
      this.between().copyBufferToBuffer(stage, 0, to, offset, byteLength)
      return
    }
    const mapped = byteLength > MAPPED ? this.uploads.stage(data) : undefined
    if (mapped) this.between().copyBufferToBuffer(mapped, 0, to, offset, byteLength)
    // A whole piece is worth a submit: the device copies it while the next one is filled.
    if (!mapped || this.uploads.waiting >= PIECE) this.flush()
    if (!mapped) this.device.queue.writeBuffer(to, offset, this.uploads.queueable(data))
  }

  /** Fills memory that nothing recorded so far uses: also where a caller never submits the recording under way. */
  fill(buf: GpuBuf, data: Uint8Array<ArrayBuffer>): void {
    this.device.queue.writeBuffer(buf.gpu, buf.offset, data)
  }

  /** Submits what was recorded. */
  flush(): void {
    if (this.caller) throw new Error('A recording into a caller’s encoder is submitted by the caller.')
    if (!this.encoder) return
    const encoder = this.between()
    this.encoder = undefined
    this.dispatches = 0
    this.state.submit(() => {
      this.upload(this.arena)
      this.device.queue.submit([encoder.finish()])
    })
    this.uploads.submitted()
  }

  private upload(arena: Arena): void {
    if (arena.used) this.device.queue.writeBuffer(arena.gpu, 0, arena.data, 0, arena.used)
    arena.used = 0
  }

  /** Names the caller's recording that is under way, 0 for this backend's own: what one records runs as a whole or not at all. */
  get recording(): number {
    return this.caller ? this.recordings : 0
  }
  /** True while `warm` looks at what verbs would use: nothing is run, so nothing may be remembered as run. */
  get collecting(): boolean {
    return this.pipelines.collecting
  }
  private recordings = 0
  private dispatches = 0

  /**
   * Records what `body` calls into the caller's encoder, between its passes. What was recorded before is submitted first.
   * @returns frees the few KiB of job words; call it once the commands are submitted, and with true where that is sure:
   * then later recordings use the words' memory again. One that joins the recording under way leaves that to it.
   * Where `body` throws, they are freed, and the encoder must not be submitted.
   */
  recordInto(encoder: GPUCommandEncoder, body: () => void): (submitted?: boolean) => void {
    if (this.caller && this.encoder === encoder) {
      body()
      return () => {}
    }
    this.flush()
    const kept = this.arena
    this.recordings++
    const caller = { arenas: [] as Arena[], buffers: [] as GPUBuffer[] }
    this.caller = caller
    this.arena = this.ownArena(caller)
    this.encoder = encoder
    const release = (submitted = false) => {
      for (const arena of caller.arenas.splice(0)) {
        if (submitted && !this.disposed) this.spare.push(arena)
        else arena.gpu.destroy()
      }
      for (const buffer of caller.buffers) buffer.destroy()
    }
    try {
      try {
        body()
      } finally {
        const { pass } = this
        // Whatever the caller's encoder throws, the next recording starts afresh.
        this.pass = undefined
        this.encoder = undefined
        this.caller = undefined
        this.dispatches = 0
        this.arena = kept
        for (const arena of caller.arenas) this.upload(arena)
        pass?.end()
      }
    } catch (error) {
      release()
      throw error
    }
    return release
  }

  private ownArena(caller: { arenas: Arena[] }): Arena {
    const arena = this.spare.pop() ?? new Arena(this.device, this.pipelines.uniforms, ARENA / 4)
    caller.arenas.push(arena)
    return arena
  }

  /** Bind groups keep destroyed buffers from being collected. */
  forget(): void {
    this.groups.clear()
  }

  dispose(): void {
    this.pass = undefined
    this.encoder = undefined
    this.groups.clear()
    this.disposed = true
    for (const arena of [this.arena, ...this.spare.splice(0)]) arena.gpu.destroy()
  }
}
