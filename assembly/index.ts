/*
 * Everything the module exports. Pointers and sizes are u32 bytes, axes as in the legend of the package.
 *
 *   host → | allocate, release | one function a kernel (two for `rerank`) | stream, for measurements |
 */
export { allocate, release } from './arena'
export { attend } from './attend'
export { coarseCollision } from './coarse-collision'
export { coarseSigns } from './coarse-signs'
export { dense } from './dense'
export { encode } from './encode'
export { gate } from './gate'
export { linear } from './linear'
export { lookup } from './lookup'
export { merge } from './merge'
export { norm } from './norm'
export { query } from './query'
export { rerankCodes, rerankRows } from './rerank'
export { rope } from './rope'
export { rotate } from './rotate'
export { select } from './select'
export { storeTokens as store } from './store'
export { stream } from './stream'
export { topk } from './topk'
