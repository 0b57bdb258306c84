export * from '../sdk/index.ts'
export { createEngine, type EngineOptions } from './browser.ts'
