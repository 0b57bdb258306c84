export { mergePartials } from '../attend/merge-partials.ts'
