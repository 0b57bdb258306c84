import { readFileSync } from 'node:fs'
import { freemem } from 'node:os'

/**
 * Bytes of host memory that this process may still take.
 * @param total bytes of the host where it tells less, as a virtual machine does whose memory grows as it is used
 */
export function hostFree(total?: number): number {
  const text = read('/proc/meminfo')
  const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(text)?.[1] ?? Number.NaN) * 1024
  const [all, available] = [field('MemTotal'), field('MemAvailable')]
  if (!Number.isFinite(available)) return freemem()
  if (total !== undefined) return total - (all - available)
  const limit = Number(read('/sys/fs/cgroup/memory.max') || Number.NaN)
  return Number.isFinite(limit) ? Math.min(available, limit - Number(read('/sys/fs/cgroup/memory.current'))) : available
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
