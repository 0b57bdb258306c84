import { parseFrame, takeTensors } from '../sdk/http/tensors.ts'
import { type Engine, ParisError, type Session } from '../sdk/index.ts'
import { placementOf } from '../sdk/session/placement.ts'
import type { LogEntry, SessionLog, StoredSession } from './workers-log.ts'

/** The session as its log tells it. @throws ParisError `snapshot_corrupt` for a log with a gap, `out_of_memory` */
export async function reload(engine: Engine, { record }: StoredSession, log: SessionLog): Promise<Session> {
  const snapshot = log.snapshot()
  const session = snapshot
    ? await engine.restore(snapshot, {
        maxBytes: engine.estimate(record.options).total,
        placement: placementOf(record.options.policy),
      })
    : await engine.createSession(record.options)
  for (const entry of log.entries()) await replay(session, entry)
  return session
}

async function replay(session: Session, entry: LogEntry): Promise<void> {
  if (entry.kind === 'truncate') return session.truncate(entry.length)
  const length = session.length(entry.layer)
  if (entry.start !== length) throw gap(entry, length)
  const { inputs } = takeTensors(parseFrame(entry.frame), { keys: ['T'], values: ['T'] })
  await session.append(entry.layer, inputs)
}

function gap({ layer, start }: { layer: number; start: number }, length: number): ParisError {
  return new ParisError('snapshot_corrupt', {
    where: `the log, layer ${layer}`,
    got: `rows from ${start} on`,
    want: `rows from ${length} on`,
    fix: 'Delete the session, open another and append again.',
  })
}
