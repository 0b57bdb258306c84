// Run by webgpu.test.ts: leaves live buffers and a read that nobody waits for.
import { openWebgpu } from '../support/gpu.ts'

const backend = await openWebgpu()
const [buf] = await backend.alloc([{ label: 'left', bytes: 1 << 20 }])
backend.write(buf, 0, new Uint8Array(1 << 20).fill(1))
await backend.read(buf, 0, 4)
backend.read(buf, 0, 1 << 20).catch(() => {})
console.log('done')
