import { Engine, type Session } from '../../../sdk/index.ts'
import type { Lane } from './lane.ts'

/** An engine on which some sessions attend by their lanes; their own rows only count the tokens. */
export class LaneEngine extends Engine {
  private readonly lanes = new Map<Session, Lane>()

  /** From now on, or no longer, `session` attends by `lane`, which holds the same tokens. */
  assign(session: Session, lane: Lane | undefined): void {
    if (lane) this.lanes.set(session, lane)
    else this.lanes.delete(session)
  }

  override async appendBatch(...[items, options]: Parameters<Engine['appendBatch']>): Promise<void> {
    for (const { session, layer, keys, values } of items)
      this.lanes.get(session)?.append(layer, keys as Float32Array, values as Float32Array)
    return super.appendBatch(items, options)
  }

  override async attendBatch(...[items, options]: Parameters<Engine['attendBatch']>) {
    const rest = await super.attendBatch(
      items.filter(({ session }) => !this.lanes.has(session)),
      options,
    )
    let next = 0
    return items.map(({ session, layer, queries }) => {
      const lane = this.lanes.get(session)
      if (!lane) return rest[next++]
      const output = lane.attend(layer, queries as Float32Array)
      return { output, lse: new Float32Array(0) }
    })
  }
}
