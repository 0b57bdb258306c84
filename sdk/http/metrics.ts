import type { Admission } from './admission.ts'
import type { Service } from './service.ts'

/** Upper bounds of the latency histogram, in seconds. */
const BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30] as const

interface Histogram {
  readonly counts: number[]
  sum: number
  count: number
}

/** Requests under way, of one app. */
type UnderWay = Pick<Admission, 'inFlight' | 'bufferedBytes'>

/** Counts answered requests. */
export class Metrics {
  private readonly requests = new Map<string, number>()
  private readonly seconds = new Map<string, Histogram>()
  private readonly beside: UnderWay[] = []

  /** Counts in the requests under way of an app beside this one, whose answers are observed here as well. */
  include(underWay: UnderWay): void {
    this.beside.push(underWay)
  }

  /** @param route its pattern, so that there are few of them */
  observe(method: string, route: string, status: number, ms: number): void {
    const labels = `method="${method}",route="${route}",status="${status}"`
    this.requests.set(labels, (this.requests.get(labels) ?? 0) + 1)
    const key = `method="${method}",route="${route}"`
    const histogram = this.seconds.get(key) ?? { counts: BUCKETS.map(() => 0), sum: 0, count: 0 }
    this.seconds.set(key, histogram)
    const seconds = ms / 1000
    const bucket = BUCKETS.findIndex((bound) => seconds <= bound)
    if (bucket >= 0) histogram.counts[bucket]++
    histogram.sum += seconds
    histogram.count++
  }

  /** Prometheus text, version 0.0.4. */
  text(service: Service): string {
    const { admission, host, sessions, replayPool } = service
    const apps = [admission, ...this.beside]
    const [inFlight, buffered] = [sumOf(apps, 'inFlight'), sumOf(apps, 'bufferedBytes')]
    const out: string[] = []
    const family = (name: string, type: string, help: string, samples: readonly (readonly [string, number])[]) => {
      out.push(`# HELP pariskv_${name} ${help}`, `# TYPE pariskv_${name} ${type}`)
      for (const [labels, value] of samples) out.push(`pariskv_${name}${labels && `{${labels}}`} ${value}`)
    }
    family('requests_total', 'counter', 'Answered requests.', [...this.requests])
    this.histogram(out)
    family('requests_in_flight', 'gauge', 'Requests under way or waiting.', [['', inFlight]])
    family('buffered_bytes', 'gauge', 'Bytes of request bodies held.', [['', buffered]])
    family('sessions', 'gauge', 'Open sessions.', [['', sessions.size]])
    family('session_bytes', 'gauge', 'Bytes reserved for sessions.', [['', admission.reserved.bytes]])
    const held = [...sessions].reduce((sum, { session }) => sum + session.memory().total, 0)
    family('session_bytes_held', 'gauge', 'Bytes that sessions hold now.', [['', held]])
    family('replay_bytes', 'gauge', 'Bytes of answers kept for retries.', [['', replayPool.bytes]])
    const { mean, audits } = recallOf(service)
    family('recall_audits', 'gauge', 'Audited retrievals of open sessions.', [['', audits]])
    if (audits > 0) family('recall_mean', 'gauge', 'Mean recall of those audits.', [['', mean]])
    family('engine_opened_total', 'counter', 'Engines opened.', [['', host.counts.opened]])
    family('device_lost_total', 'counter', 'Devices lost.', [['', host.counts.lost]])
    family('ready', 'gauge', '1 while requests are served.', [
      ['', host.state === 'ready' && !service.draining ? 1 : 0],
    ])
    const backend = host.current?.info.backend
    if (backend) family('backend_info', 'gauge', 'The backend that won.', [[`backend="${backend}"`, 1]])
    return `${out.join('\n')}\n`
  }

  private histogram(out: string[]): void {
    out.push('# HELP pariskv_request_seconds Time to the answer.', '# TYPE pariskv_request_seconds histogram')
    for (const [labels, { counts, sum, count }] of this.seconds) {
      let below = 0
      BUCKETS.forEach((bound, i) => {
        below += counts[i]
        out.push(`pariskv_request_seconds_bucket{${labels},le="${bound}"} ${below}`)
      })
      out.push(`pariskv_request_seconds_bucket{${labels},le="+Inf"} ${count}`)
      out.push(`pariskv_request_seconds_sum{${labels}} ${sum}`, `pariskv_request_seconds_count{${labels}} ${count}`)
    }
  }
}

function sumOf(apps: readonly UnderWay[], name: keyof UnderWay): number {
  return apps.reduce((sum, app) => sum + app[name], 0)
}

function recallOf({ sessions }: Service): { mean: number; audits: number } {
  let [sum, audits] = [0, 0]
  for (const { session } of sessions) {
    const recall = session.stats().recall
    if (recall.audits === 0) continue
    sum += recall.mean * recall.audits
    audits += recall.audits
  }
  return { mean: sum / audits, audits }
}
