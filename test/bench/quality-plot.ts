import type { Plot } from './plots.ts'
import type { Cell } from './quality-results.ts'
import { EXACT } from './quality-selectors.ts'

/** Share of answers right: a panel for each length and K, a bar for each selector. */
export function qualityPlot(cells: readonly Cell[]): Plot {
  const ks = [...new Set(cells.map(({ k }) => k))].filter((k) => k > 0)
  const values = cells
    .flatMap((cell) => (cell.name === EXACT.name ? ks.map((k) => ({ ...cell, k })) : [cell]))
    .map(({ name, k, tokens, right, asked }) => ({
      selector: name,
      rows: `K ${k}`,
      text: `${tokens.toLocaleString('en')} tokens`,
      right: (100 * right) / asked,
      family: name.startsWith('ParisKV') ? 'ParisKV' : name.startsWith('exact') ? 'exact' : 'others',
    }))
  const order = [...new Set(values.map(({ selector }) => selector))]
  const unique = (of: 'rows' | 'text') => [...new Set(values.map((value) => value[of]))]
  return {
    data: { values },
    mark: { type: 'bar', height: { band: 0.75 } },
    width: 170,
    height: { step: 16 },
    encoding: {
      y: { field: 'selector', type: 'nominal', sort: order, title: null },
      x: { field: 'right', type: 'quantitative', title: '% of answers right', scale: { domain: [0, 100] } },
      color: {
        field: 'family',
        type: 'nominal',
        scale: { domain: ['exact', 'ParisKV', 'others'], range: ['#9aa0a6', '#1a73e8', '#e8a33d'] },
        legend: null,
      },
      column: { field: 'rows', type: 'nominal', sort: unique('rows'), title: null },
      row: { field: 'text', type: 'nominal', sort: unique('text'), title: null },
    },
  }
}
