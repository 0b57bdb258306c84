/**
 * Runs the suites of the backends in Debian's chromium, on WebGPU by its software GPU and on WebAssembly:
 * npm run test:browser [-- part of a suite's path...]. $CHROMIUM names another chromium; where there is none, it says so
 * and succeeds.
 */
import { existsSync } from 'node:fs'
import { type Browser, chromium } from 'playwright-core'
import { kernelBytes } from '../support/kernels-wasm.ts'
import { LEFT_OUT, SUITES } from '../support/suites.ts'
import { bundleSuites } from './bundle.ts'
import { serve } from './serve.ts'

const TIMEOUT_MINUTES = process.env.PARISKV_TEST === 'full' ? 120 : 20
const executablePath = process.env.CHROMIUM || '/usr/bin/chromium'

async function runIn(browser: Browser, url: string, suites: readonly string[]): Promise<boolean> {
  const addresses = JSON.stringify(suites.map((name) => `/test/${name.replace(/ts$/, 'js')}`))
  const page = await browser.newPage()
  let last = 'none yet'
  let failed = false
  page.on('console', (message) => {
    if (message.type() === 'debug') last = message.text()
    else console.log(message.text())
  })
  page.on('pageerror', (error) => {
    failed = true
    console.log(`FAILED outside of a test, after ${last} began\n  ${error.stack}`)
  })
  await page.goto(url)
  const counts = page.evaluate<{ failed: number; passed: number }>(
    `import('/test/browser/page.js').then(({ run }) => run(${addresses}))`,
  )
  const stops = [
    new Promise<never>((_, reject) => page.once('crash', () => reject(new Error('the page crashed')))),
    new Promise<never>((_, reject) =>
      setTimeout(() => reject(new Error(`not done in ${TIMEOUT_MINUTES} minutes`)), TIMEOUT_MINUTES * 60_000).unref(),
    ),
  ]
  try {
    const { failed: count, passed } = await Promise.race([counts, ...stops])
    return !failed && count === 0 && passed > 0
  } catch (error) {
    throw new Error(`while this test ran: ${last}`, { cause: error })
  }
}

async function main(): Promise<boolean> {
  const wanted = process.argv.slice(2)
  const suites = [...SUITES, 'browser/adapter.ts'].filter(
    (name) => wanted.length === 0 || wanted.some((part) => name.includes(part)),
  )
  for (const [name, reason] of Object.entries(LEFT_OUT)) console.log(`${name}: left out, ${reason}`)
  const files = new Map<string, string | Uint8Array>(await bundleSuites(suites))
  files.set('/build/kernels.wasm', kernelBytes())
  await using server = await serve(files)
  const browser = await chromium.launch({
    executablePath,
    chromiumSandbox: false,
    args: ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'],
  })
  try {
    console.log(`${suites.length} suites in chromium ${browser.version()}`)
    return await runIn(browser, server.url, suites)
  } finally {
    await Promise.race([browser.close(), new Promise((resolve) => setTimeout(resolve, 10_000))])
  }
}

if (!existsSync(executablePath)) {
  console.log(`skipped: there is no ${executablePath}; CHROMIUM=/path/to/chromium names another`)
} else {
  const ok = await main().catch((error: unknown) => {
    console.error(error)
    return false
  })
  // A browser that did not close in time ends with the process.
  process.exit(ok ? 0 : 1)
}
