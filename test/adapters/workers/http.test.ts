import { exports } from 'cloudflare:workers'
import { httpSuite } from '../../http/suite.ts'

httpSuite('a Worker and its Durable Objects', async () => ({
  fetch: (path, init) => exports.default.fetch(new Request(`https://pariskv.test${path}`, init)),
  close: async () => {},
}))
