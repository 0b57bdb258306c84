import type { Window } from './drift-stream.ts'
import type { Plot } from './plots.ts'

/** Recall@100 by window of answer tokens: a line a method. */
export function driftPlot(windows: readonly Window[]): Plot {
  const values = windows.flatMap(({ recall, answered }, w) =>
    Object.entries(recall).map(([method, share]) => ({ method, recall: share, tokens: (w + 1) * answered })),
  )
  const scale = {
    domain: [...new Set(values.map(({ method }) => method))],
    range: ['#1a73e8', '#c5221f', '#f2a19e', '#b06000', '#f1c27d'],
  }
  return {
    data: { values },
    mark: { type: 'line', point: true },
    width: 420,
    height: 240,
    encoding: {
      x: { field: 'tokens', type: 'quantitative', title: 'answer tokens generated' },
      y: { field: 'recall', type: 'quantitative', title: 'recall@100', scale: { domain: [0, 1] } },
      color: { field: 'method', type: 'nominal', scale, legend: { title: null, labelLimit: 240 } },
    },
  }
}
