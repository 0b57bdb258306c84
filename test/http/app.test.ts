import { local } from './served.ts'
import { httpSuite } from './suite.ts'

httpSuite('app.request', async () => (await local()).alice.served)
