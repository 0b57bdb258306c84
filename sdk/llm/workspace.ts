import type { Backend, Buf } from '../backend.ts'
import type { ModelConfig } from './config.ts'

/** Activations of up to `tokens` tokens, f32, and what their verbs need beside the weights. */
export interface Workspace {
  readonly tokens: number
  /** [T] u32. */
  readonly ids: Buf
  /** [T · Hq, d] and [T · H, d]: see `ropeTable`. */
  readonly queryTable: Buf
  readonly keyTable: Buf
  /** [T, hidden]: the residual stream. */
  readonly stream: Buf
  /** [T, hidden]: normalized, where matrices do not do it themselves. */
  readonly normed: Buf
  /** [T, Hq · d], [T, H · d] as projected. */
  readonly q: Buf
  readonly k: Buf
  readonly v: Buf
  /** [Hq, T, d], [H, T, d] turned by position; one token's heads together while decoding. */
  readonly queries: Buf
  readonly keys: Buf
  readonly values: Buf
  /** [Hq, T, d], and as [T, Hq · d]. */
  readonly attended: Buf
  readonly mixed: Buf
  /** [T, inner]. */
  readonly gate: Buf
  readonly up: Buf
  readonly gated: Buf
  /** [R, hidden], [R, V]: of the rows whose logits are asked for. */
  readonly last: Buf
  readonly logits: Buf
}

/** Most sequences that decode together. */
export const MAX_BATCH = 64

/** The one workspace of a model, which grows with the longest pass so far. */
export class Workspaces {
  private work: Workspace | undefined
  private buffers: readonly Buf[] = []
  private rows = 0

  constructor(
    private readonly backend: Backend,
    private readonly config: ModelConfig,
  ) {}

  /**
   * Memory for a pass; what it held is undefined afterwards where it grows.
   * @param rows of logits
   * @throws ParisError `out_of_memory`; what was there stays
   */
  async reserve(tokens: number, rows: number): Promise<Workspace> {
    if (this.work && this.work.tokens >= tokens && this.rows >= rows) return this.work
    const [most, mostRows] = [Math.max(tokens, this.work?.tokens ?? 0), Math.max(rows, this.rows)]
    const plan = workspacePlan(this.config, most, mostRows)
    const fresh = await this.backend.alloc(
      // Named by size: what lies together is not split over what an earlier workspace left.
      plan.map(([label, count, group]) => ({ label, bytes: count * 4, together: group && `${group} of ${most}` })),
    )
    this.dispose()
    const named = Object.fromEntries(plan.map(([name], i) => [name, fresh[i]])) as unknown as Omit<Workspace, 'tokens'>
    this.work = { tokens: most, ...named }
    this.buffers = fresh
    this.rows = mostRows
    return this.work
  }

  /** Bytes held now. */
  bytes(): number {
    return this.buffers.reduce((sum, { bytes }) => sum + bytes, 0)
  }

  dispose(): void {
    this.backend.free(this.buffers)
    this.buffers = []
    this.work = undefined
  }
}

/** Names, elements and groups: what one call writes lies together, so that the jobs of a call run as one. */
function workspacePlan(
  config: ModelConfig,
  tokens: number,
  rows: number,
): [keyof Omit<Workspace, 'tokens'>, number, string?][] {
  const { hidden, inner, vocabulary, queryHeads, kvHeads, headDim: d } = config
  const [wide, narrow] = [queryHeads * d, kvHeads * d]
  const batch = Math.min(tokens, MAX_BATCH)
  return [
    ['ids', tokens],
    ['queryTable', Math.max(tokens * d, batch * wide), 'tables'],
    ['keyTable', Math.max(tokens * d, batch * narrow), 'tables'],
    ['stream', tokens * hidden],
    ['normed', tokens * hidden],
    ['q', tokens * wide, 'projected'],
    ['k', tokens * narrow, 'projected'],
    ['v', tokens * narrow, 'projected'],
    ['queries', tokens * wide, 'turned'],
    ['keys', tokens * narrow, 'turned'],
    ['values', tokens * narrow, 'turned'],
    ['attended', tokens * wide],
    ['mixed', tokens * wide],
    ['gate', tokens * inner, 'inner'],
    ['up', tokens * inner, 'inner'],
    ['gated', tokens * inner],
    ['last', rows * hidden],
    ['logits', rows * vocabulary],
  ]
}
