/** A page that reads `openapi.json` beside it and shows it; it loads nothing from elsewhere. */
export function docsPage(): string {
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>pariskv</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
  code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f4f4f4; border-radius: 4px }
  pre { padding: .8rem; overflow: auto } h2 { font-size: 1.05rem; margin-top: 2rem } td { padding-right: 1rem }
  @media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } code, pre { background: #262626 } }
</style>
<h1>pariskv</h1>
<p>Bodies with tensors are safetensors: tensors by name, F32, F16 or BF16. Scalars stand in path and query.</p>
<label>Token <input id="token" type="password" autocomplete="off"></label> <button id="load">Load</button>
<main id="routes"></main>
<script>
  const make = (tag, text, parent) => parent.appendChild(Object.assign(document.createElement(tag), { textContent: text }))
  const load = async () => {
    const token = document.querySelector('#token').value
    const routes = document.querySelector('#routes')
    const answer = await fetch('openapi.json', { headers: token ? { authorization: 'Bearer ' + token } : {} })
    const doc = await answer.json()
    routes.replaceChildren()
    if (!answer.ok) return make('pre', JSON.stringify(doc, null, 2), routes)
    for (const [path, methods] of Object.entries(doc.paths))
      for (const [method, route] of Object.entries(methods)) {
        make('code', method.toUpperCase() + ' ' + path, make('h2', '', routes))
        make('p', route.summary ?? '', routes)
        if (route.description) make('p', route.description, routes)
        for (const p of route.parameters ?? []) make('li', p.in + ' ' + p.name + ': ' + (p.schema?.description ?? ''), routes)
        if (route.requestBody) make('p', 'Takes ' + Object.keys(route.requestBody.content) + ': ' + route.requestBody.description, routes)
        for (const [status, r] of Object.entries(route.responses)) make('li', status + ': ' + r.description, routes)
      }
    make('h2', 'Schemas', routes)
    make('pre', JSON.stringify(doc.components.schemas, null, 2), routes)
  }
  document.querySelector('#load').onclick = load
  load()
</script>
</html>
`
}
