// bullmq: defaults. A result is waited for by the stream of events.

import { Job, Queue, QueueEvents, Worker } from 'bullmq'
import { main, perform } from './adapter.mjs'

class Bullmq {
  packages = ['bullmq', 'ioredis']

  constructor (options) {
    this.options = options
    // What its documentation asks for where commands block.
    this.connection = { url: options.url, maxRetriesPerRequest: null }
  }

  async open () {
    this.queue = new Queue('peer', { connection: this.connection })
    await this.queue.waitUntilReady()
  }

  async enqueue (payload) {
    return (await this.queue.add('handle', payload)).id
  }

  async enqueueMany (payloads) {
    return (await this.queue.addBulk(payloads.map(data => ({ name: 'handle', data })))).map(job => job.id)
  }

  async results (handles) {
    const jobs = await Promise.all(handles.map(id => Job.fromId(this.queue, id)))
    return jobs.map(job => job?.returnvalue)
  }

  async call (payload) {
    if (this.events === undefined) {
      this.events = (async () => {
        const events = new QueueEvents('peer', { connection: this.connection })
        await events.waitUntilReady()
        await new Promise(resolve => setTimeout(resolve, 200)) // it reads from now on
        events.setMaxListeners(0)
        return events
      })()
    }
    const events = await this.events
    const job = await this.queue.add('handle', payload)
    return job.waitUntilFinished(events, 60_000)
  }

  async queued () {
    return this.queue.getWaitingCount()
  }

  async work () {
    const worker = new Worker('peer', job => perform(job.data),
      { connection: this.connection, concurrency: this.options.concurrency })
    worker.on('error', error => console.error(error.message))
  }
}

await main(Bullmq)
