import type { ProgramName } from '../../wgsl/programs.ts'
import { ParisError } from '../errors.ts'
import { ALIGN, type GpuBuf } from './webgpu-memory.ts'

/** A buffer bound to a program; `headBytes` says that it is head-major, so that heads can be cut apart. */
export interface Binding {
  readonly buf: GpuBuf
  readonly headBytes?: number
  /** Bytes a key of a head, where a head may be cut as well. */
  readonly step?: number
  /** Bytes [from, to) of a head that are to be seen. */
  readonly range?: readonly [number, number]
}

/** One job of one program. */
export interface Task {
  readonly bind: readonly Binding[]
  /** In the order of the program's fields. */
  readonly fields: readonly number[]
  /** Workgroups a head. */
  readonly x: number
  readonly heads: number
  /** A part of a head: its first workgroup. It is dispatched by itself, one head at a time. */
  readonly block0?: number
}

/** The heads of a task that fit one binding each, and the windows to bind. */
export interface Piece {
  readonly task: Task
  readonly head0: number
  readonly heads: number
  readonly windows: readonly Window[]
}
export interface Window {
  readonly buf: GpuBuf
  readonly start: number
  readonly end: number
}

/** Whether not even one head of a binding fits. */
export function tooWide({ buf, headBytes = 0 }: Binding, reach: number): boolean {
  return buf.slab.size > reach && headBytes > reach - ALIGN
}

/** Cuts a task by heads until every binding's window holds at most `reach` bytes. */
export function split(name: ProgramName, task: Task, reach: number): Piece[] {
  let most = task.block0 === undefined ? task.heads : 1
  for (const binding of task.bind) {
    const { buf, headBytes, range } = binding
    if (!headBytes || range || buf.slab.size <= reach) continue
    if (tooWide(binding, reach)) throw tooLarge(name, headBytes, reach)
    most = Math.min(most, Math.floor((reach - ALIGN) / headBytes))
  }
  most = Math.ceil(task.heads / Math.ceil(task.heads / most))
  const pieces: Piece[] = []
  for (let head0 = 0; head0 < task.heads; head0 += most) {
    const heads = Math.min(most, task.heads - head0)
    pieces.push({ task, head0, heads, windows: task.bind.map((binding) => windowOf(binding, head0, heads, reach)) })
  }
  return pieces
}

function windowOf({ buf, headBytes, range }: Binding, head0: number, heads: number, reach: number): Window {
  if (buf.slab.size <= reach) return { buf, start: 0, end: buf.slab.size }
  const base = buf.offset + (headBytes ? head0 * headBytes : 0)
  const from = base + (range ? range[0] : 0)
  const end = range ? base + range[1] : headBytes ? base + heads * headBytes : buf.offset + buf.bytes
  return { buf, start: Math.floor(from / ALIGN) * ALIGN, end: Math.min(buf.slab.size, Math.ceil(end / 16) * 16) }
}

/** The union of two jobs' windows, where every binding is in the same GPUBuffer and one window can hold both. */
export function join(a: readonly Window[], b: readonly Window[], most: number): Window[] | undefined {
  const joined: Window[] = []
  for (let i = 0; i < a.length; i++) {
    if (a[i].buf.slab !== b[i].buf.slab) return undefined
    const start = Math.min(a[i].start, b[i].start)
    const end = Math.max(a[i].end, b[i].end)
    if (end - start > most) return undefined
    joined.push({ buf: a[i].buf, start, end })
  }
  return joined
}

export function tooLarge(name: string, bytes: number, most: number): ParisError {
  return new ParisError('out_of_range', {
    where: `webgpu.${name}`,
    got: `${bytes} bytes a head in one binding`,
    want: `at most ${most}`,
    fix: 'Ask the adapter for its largest maxStorageBufferBindingSize, or lower the capacity.',
  })
}
