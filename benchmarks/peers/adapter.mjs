// adapter.py for Node: the same loops, the same lines on stdin and stdout. Keep them alike; see there.

import { openSync, readFileSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

const STAMP = 24
const PATIENCE_MS = 60_000

// Stamps are gathered and written every 20 ms: a system call for each would be paid by the peer.
class Stamps {
  #file
  #count = new Map()
  #todo = []

  constructor (path) {
    this.#file = openSync(path, 'r+')
    setInterval(() => this.#write(), 20)
  }

  note (number, began) {
    const count = (this.#count.get(number) ?? 0) + 1
    this.#count.set(number, count)
    this.#todo.push([number, began, now(), count])
  }

  #write () {
    const todo = this.#todo.sort((a, b) => a[0] - b[0])
    this.#todo = []
    for (let at = 0; at < todo.length;) {
      let end = at + 1
      while (end < todo.length && todo[end][0] === todo[end - 1][0] + 1) end++
      const values = new Float64Array(3 * (end - at))
      for (let n = at; n < end; n++) values.set(todo[n].slice(1), 3 * (n - at))
      writeSync(this.#file, new Uint8Array(values.buffer), 0, values.byteLength, STAMP * todo[at][0])
      at = end
    }
  }
}

let stamps

const now = () => (performance.timeOrigin + performance.now()) / 1000
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

// The handler of every peer: sleeps when told to, stamps, returns a number of the payload.
export async function perform (payload) {
  const began = now()
  if (payload.ms) await pause(payload.ms)
  stamps.note(payload.n, began)
  return payload.n
}

const payloads = (first, number, size, ms) => Array.from({ length: number },
  (_, n) => ({ n: first + n, s: 'x'.repeat(size), ...(ms ? { ms } : {}) }))

function same (expected, found) {
  if (found !== expected) throw new Error(`job ${expected} has the result ${JSON.stringify(found)}`)
}

class Server {
  #adapter
  #handles = new Map()

  constructor (adapter) {
    this.#adapter = adapter
  }

  versions () {
    const installed = this.#adapter.packages.map(name =>
      [name, JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version])
    return Object.fromEntries([['node', process.versions.node], ...installed])
  }

  abilities () {
    return { bulk: this.#adapter.enqueueMany !== undefined }
  }

  enqueue ({ first, number, size, lanes = 1, seconds = 600, ms = 0 }) {
    return this.#timed(lanes, payloads(first, number, size, ms), seconds, item => this.#adapter.enqueue(item),
      (item, handle) => this.#handles.set(item.n, handle))
  }

  async enqueue_many ({ first, number, size, batch, seconds = 600, ms = 0 }) {
    const all = payloads(first, number, size, ms)
    const batches = []
    for (let at = 0; at < number; at += batch) batches.push(all.slice(at, at + batch))
    const before = this.#handles.size
    const answer = await this.#timed(1, batches, seconds, items => this.#adapter.enqueueMany(items),
      (items, handles) => items.forEach((item, n) => this.#handles.set(item.n, handles[n])))
    return { ...answer, number: this.#handles.size - before }
  }

  call ({ first, number, size, lanes = 1, seconds = 600 }) {
    return this.#timed(lanes, payloads(first, number, size, 0), seconds, item => this.#adapter.call(item),
      (item, result) => same(item.n, result))
  }

  async check () {
    const numbers = [...this.#handles.keys()]
    const deadline = Date.now() + PATIENCE_MS
    for (let at = 0; at < numbers.length; at += 1000) {
      let part = numbers.slice(at, at + 1000)
      while (true) {
        const found = await this.#adapter.results(part.map(number => this.#handles.get(number)))
        const missing = part.filter((_, n) => found[n] === null || found[n] === undefined)
        part.forEach((number, n) => missing.includes(number) || same(number, found[n]))
        if (missing.length === 0) break
        if (Date.now() > deadline) {
          throw new Error(`${missing.length} jobs have no result, the first is ${missing[0]}`)
        }
        part = missing
        await pause(10)
      }
    }
    return { checked: numbers.length }
  }

  queued () {
    return this.#adapter.queued()
  }

  forget () {
    this.#handles.clear()
  }

  async #timed (lanes, items, seconds, act, keep) {
    const beganAt = now()
    const began = performance.now()
    const deadline = began + 1000 * seconds
    const each = []
    let next = 0
    const lane = async () => {
      while (next < items.length && performance.now() < deadline) {
        const item = items[next++]
        const from = performance.now()
        const answer = await act(item)
        each.push((performance.now() - from) / 1000)
        keep(item, answer)
      }
    }
    await Promise.all(Array.from({ length: lanes }, lane))
    const took = (performance.now() - began) / 1000
    each.sort((a, b) => a - b)
    const cut = percent => each[Math.min(each.length - 1, Math.floor(each.length * percent / 100))]
    return { began: beganAt, seconds: took, number: each.length, cuts: each.length ? { 50: cut(50), 99: cut(99) } : {} }
  }
}

// `serve` or `work`.
export async function main (Adapter) {
  const [role, options] = [process.argv[2], JSON.parse(process.argv[3])]
  const adapter = new Adapter(options)
  if (role === 'work') {
    stamps = new Stamps(options.stamps)
    process.stdin.on('end', () => process.exit()).resume()
    await adapter.work()
    return
  }
  await adapter.open()
  const server = new Server(adapter)
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...question } = JSON.parse(line)
    let answer
    try {
      answer = { ok: (await server[name](question)) ?? null }
    } catch (error) {
      console.error(error)
      answer = { error: `${error.name}: ${error.message}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit()
}
