/* As much of node:fs as the suites need, of the files that the server of the page has. */

function get(url: string | URL): XMLHttpRequest {
  const request = new XMLHttpRequest()
  request.open('GET', url, false)
  // Each byte becomes the low half of one character: a synchronous request in a page gives no bytes.
  request.overrideMimeType('text/plain; charset=x-user-defined')
  request.send()
  return request
}

export function existsSync(url: string | URL): boolean {
  return get(url).status === 200
}

export function readFileSync(url: string | URL): Uint8Array<ArrayBuffer> {
  const { status, responseText } = get(url)
  if (status !== 200) throw new Error(`${url} answered ${status}`)
  const bytes = new Uint8Array(responseText.length)
  for (let i = 0; i < bytes.length; i++) bytes[i] = responseText.charCodeAt(i)
  return bytes
}
