import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

/** A Vega-Lite specification. */
export type Plot = Readonly<Record<string, unknown>>

/** Draws a plot into an SVG file; says so where the library is not installed. */
export async function savePlot(file: string, plot: Plot): Promise<void> {
  try {
    const [vega, { compile }] = await Promise.all([import('vega'), import('vega-lite')])
    const common = { background: 'white', config: { font: 'sans-serif', view: { stroke: null } } }
    const { spec } = compile({ ...common, ...plot })
    const svg = await new vega.View(vega.parse(spec), { renderer: 'none' }).toSVG()
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, `${svg}\n`)
    console.log(`${file} drawn`)
  } catch (error) {
    if ((error as { code?: string }).code !== 'ERR_MODULE_NOT_FOUND') throw error
    console.log(`${file} not drawn: run npm ci --prefix test/bench for vega`)
  }
}
