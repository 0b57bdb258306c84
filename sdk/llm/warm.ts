import { type Decoder, embed, finish, head, type Pass, project } from './decoder.ts'
import { Workspaces } from './workspace.ts'

/** Tokens of a prompt that every program of a pass takes for many. */
const MANY = 64

/** Compiles, where the backend has pipelines, those of a model's passes over one token and over many; nothing is run. */
export async function warmDecoder(decoder: Decoder): Promise<void> {
  const { backend, config } = decoder
  if (!backend.warm) return
  const passes: Pass[] = [
    { kind: 'step', positions: [0] },
    { kind: 'prompt', positions: Array.from({ length: MANY }, (_, t) => t) },
  ]
  const workspaces = new Workspaces(backend, config)
  try {
    const work = await workspaces.reserve(MANY, 1)
    await backend.warm(() => {
      for (const pass of passes) {
        const tokens = pass.positions.length
        embed(decoder, work, tokens)
        project(decoder, work, 0, pass)
        finish(decoder, work, 0, pass)
        head(decoder, work, tokens, 1)
      }
    })
  } finally {
    workspaces.dispose()
  }
}
