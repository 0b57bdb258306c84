// What the benches use of libraries that only test/bench/package.json installs.

declare module 'usearch' {
  export const MetricKind: { readonly IP: string }
  export const ScalarKind: { readonly F32: string }
  export class Index {
    constructor(options: {
      dimensions: number
      metric: string
      quantization: string
      connectivity: number
      expansion_add: number
      expansion_search: number
      multi: boolean
    })
    add(key: bigint, vector: Float32Array, threads: number): void
    search(vector: Float32Array, k: number, threads: number): { readonly keys: BigUint64Array }
  }
}

declare module 'hnswlib-node' {
  class HierarchicalNSW {
    constructor(space: 'ip', d: number)
    initIndex(options: { maxElements: number; m: number; efConstruction: number; randomSeed: number }): void
    setEf(ef: number): void
    addPoint(point: number[], label: number): void
    searchKnn(query: number[], k: number): { readonly neighbors: number[] }
  }
  const library: { readonly HierarchicalNSW: typeof HierarchicalNSW }
  export default library
}

declare module 'vega' {
  export function parse(spec: object): object
  export class View {
    constructor(dataflow: object, options: { renderer: 'none' })
    toSVG(): Promise<string>
  }
}

declare module 'vega-lite' {
  export function compile(spec: object): { readonly spec: object }
}
