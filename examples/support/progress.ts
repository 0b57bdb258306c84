export { progressBar } from '../../adapters/progress.ts'
