import type { ProgramName } from '../../wgsl/programs.ts'
import { ALIGN } from './webgpu-memory.ts'
import { type Binding, type Task, tooLarge, tooWide } from './webgpu-windows.ts'

/** What a device binds at once. */
export interface Reach {
  readonly bytes: number
  /** Workgroups a dimension. */
  readonly groups: number
}

/**
 * A job whose workgroups take `unit` keys each, one after the other: as one task, or, where a head of some binding is
 * wider than one binding, cut into segments of workgroups with windows on their keys alone.
 * @param first the key that each binding's first workgroup begins with, where that is not 0
 */
export function byBlocks(
  name: ProgramName,
  task: Task,
  { bytes, groups }: Reach,
  unit: number,
  first: readonly (number | undefined)[] = [],
): Task[] {
  const isWide = (binding: Binding) => binding.step !== undefined && tooWide(binding, bytes)
  if (!task.bind.some(isWide)) return [task]
  const wide = task.bind.map(isWide)
  const stepOf = (binding: Binding, i: number) => (wide[i] ? (binding.step ?? 0) : 0)
  const block = Math.max(...task.bind.map(stepOf)) * unit
  const most = Math.min(groups, Math.floor((bytes - 2 * ALIGN) / block))
  if (most < 1) throw tooLarge(name, block, bytes)
  const tasks: Task[] = []
  for (let block0 = 0; block0 < task.x; block0 += most) {
    const x = Math.min(most, task.x - block0)
    const bind = task.bind.map((binding, i) => {
      const from = (first[i] ?? 0) + block0 * unit
      return wide[i] ? seen(binding, from, from + x * unit) : binding
    })
    tasks.push({ ...task, x, block0, bind })
  }
  return tasks
}

/**
 * A job whose workgroups read keys [0, count) in any order: as one task, or, where a head does not fit, once a segment of
 * keys [lo, hi), which are its last two fields and which SEGMENT makes the program look at.
 * @param base the place of key 0 in the bindings that have a step
 */
export function inSegments(task: Task, { bytes }: Reach, count: number, base = 0): Task[] {
  const wide = task.bind.map((binding) => binding.step !== undefined && tooWide(binding, bytes))
  if (!wide.includes(true)) return [task]
  const widest = Math.max(...task.bind.map(({ step = 0 }, i) => (wide[i] ? step : 0)))
  const most = Math.floor((bytes - 2 * ALIGN) / widest)
  const tasks: Task[] = []
  for (let lo = 0; lo < count; lo += most) {
    const hi = Math.min(count, lo + most)
    const bind = task.bind.map((binding, i) => (wide[i] ? seen(binding, base + lo, base + hi) : binding))
    tasks.push({ ...task, bind, fields: [...task.fields.slice(0, -2), lo, hi], block0: 0 })
  }
  return tasks
}

/** The constant SEGMENT of a program that `inSegments` cuts. */
export function isSegment(task: Task): number {
  return task.block0 === undefined ? 0 : 1
}

/** A binding of which keys [from, to) of a head are to be seen. */
function seen(binding: Binding, from: number, to: number): Binding {
  const { step = 0, headBytes = 0 } = binding
  return { ...binding, range: [Math.max(0, from) * step, Math.min(headBytes, to * step)] }
}
