import { JestAsymmetricMatchers, JestChaiExpect, JestExtend } from '@vitest/expect'
import * as chai from 'chai'

/*
 * As much of vitest as the suites need, for places that vitest does not reach: browsers, and machines that have Node and a
 * GPU but no packages. The suites are bundled with this in its place; the assertions are vitest's own.
 */

/** What a test is given. */
interface Given {
  readonly skip: (reason?: string) => never
}
type Body = (given: Given) => unknown
type Entry = { name: string; body?: Body; group?: Group }
interface Group {
  readonly entries: Entry[]
  readonly before: Body[]
  readonly beforeEach: Body[]
  readonly after: Body[]
  readonly afterEach: Body[]
}

const newGroup = (): Group => ({ entries: [], before: [], beforeEach: [], after: [], afterEach: [] })
const root = newGroup()
let current = root

chai.use(JestExtend)
chai.use(JestChaiExpect)
chai.use(JestAsymmetricMatchers)
export const { expect } = chai

function title(template: string, values: unknown): string {
  const list = Array.isArray(values) ? [...values] : [values]
  return template.replace(/%[isdof]|%j/g, () => String(list.shift()))
}

const eachOf =
  (add: (name: string, body: Body) => void) =>
  (cases: readonly unknown[]) =>
  (name: string, body: (...values: unknown[]) => unknown) => {
    for (const values of cases) add(title(name, values), () => body(...(Array.isArray(values) ? values : [values])))
  }

const options = (a: unknown, b: unknown) => (typeof a === 'function' ? a : b) as Body

function addTest(name: string, a: unknown, b?: unknown): void {
  current.entries.push({ name, body: options(a, b) })
}

function addGroup(name: string, a: unknown, b?: unknown): void {
  const group = newGroup()
  const outer = current
  outer.entries.push({ name, group })
  current = group
  options(a, b)(given)
  current = outer
}

const skipOne = (name: string) => void current.entries.push({ name })
const skip = Object.assign(skipOne, { each: (_cases: readonly unknown[]) => skipOne })
const run = Object.assign(addTest, { each: eachOf(addTest) })
export const it = Object.assign(addTest, {
  each: eachOf(addTest),
  skip,
  skipIf: (condition: unknown) => (condition ? skip : run),
  runIf: (condition: unknown) => (condition ? run : skip),
})
export const test = it
export const describe = Object.assign(addGroup, { each: eachOf(addGroup), skip })
export const beforeAll = (body: Body) => void current.before.push(body)
export const afterAll = (body: Body) => void current.after.push(body)
export const afterEach = (body: Body) => void current.afterEach.push(body)
export const beforeEach = (body: Body) => void current.beforeEach.push(body)
/** Nothing here has a time limit. */
const limits = { setConfig: () => {}, resetConfig: () => {} }
export const vi = new Proxy(limits, {
  get: (known, name) => Reflect.get(known, name) ?? (() => expect.fail(`vi.${String(name)} is not here`)),
})

/** Thrown by a test that finds that it cannot run. */
class Skipped extends Error {}
const given: Given = {
  skip(reason) {
    throw new Skipped(reason)
  },
}

let announce = (_name: string): void => {}
const counts = { passed: 0, failed: 0, skipped: 0 }

interface Hooks {
  readonly before: readonly Body[]
  readonly after: readonly Body[]
}

async function runGroup(group: Group, path: string, hooks: Hooks): Promise<void> {
  for (const body of group.before) await body(given)
  const each = { before: [...hooks.before, ...group.beforeEach], after: [...group.afterEach, ...hooks.after] }
  for (const { name, body, group: inner } of group.entries) {
    const where = path ? `${path} > ${name}` : name
    if (inner) await runGroup(inner, where, each)
    else if (body) await runTest(body, where, each)
    else counts.skipped++
  }
  for (const body of group.after) await body(given)
}

async function runTest(body: Body, where: string, hooks: Hooks): Promise<void> {
  announce(where)
  try {
    for (const hook of hooks.before) await hook(given)
    await body(given)
    counts.passed++
  } catch (error) {
    if (error instanceof Skipped) {
      counts.skipped++
      console.log(`skipped ${where}: ${error.message}`)
      return
    }
    counts.failed++
    console.log(`FAILED ${where}\n  ${error instanceof Error ? error.message.slice(0, 600) : error}`)
  } finally {
    for (const hook of hooks.after) await hook(given)
  }
}

/**
 * Runs everything that was registered; prints a line of counts.
 * @param onTest called with the name of each test before it starts
 */
export async function runAll(onTest: (name: string) => void = () => {}): Promise<Readonly<typeof counts>> {
  announce = onTest
  await runGroup(root, '', { before: [], after: [] })
  const { passed, failed, skipped } = counts
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`)
  return counts
}
