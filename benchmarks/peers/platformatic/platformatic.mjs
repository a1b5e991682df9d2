// @platformatic/job-queue: defaults. Jobs have ids, as with reliq.

import { Queue, RedisStorage } from '@platformatic/job-queue'
import Redis from 'iovalkey'
import { main, perform } from './adapter.mjs'

class Platformatic {
  packages = ['@platformatic/job-queue', 'iovalkey']

  constructor (options) {
    this.options = options
    this.queue = new Queue({ storage: new RedisStorage({ url: options.url }), concurrency: options.concurrency })
  }

  async open () {
    this.client = new Redis(this.options.url)
    await this.queue.start()
  }

  async enqueue (payload) {
    const id = `job-${payload.n}`
    await this.queue.enqueue(id, payload)
    return id
  }

  async results (handles) {
    return Promise.all(handles.map(id => this.queue.getResult(id)))
  }

  async call (payload) {
    return this.queue.enqueueAndWait(`job-${payload.n}`, payload, { timeout: 60_000 })
  }

  async queued () {
    return this.client.llen('jq:queue')
  }

  async work () {
    this.queue.execute(job => perform(job.payload))
    this.queue.on('error', error => console.error(error.message))
    await this.queue.start()
  }
}

await main(Platformatic)
