// The search runs in a worker, which browsers refuse to pages that are opened from a folder. There it
// runs in a hidden frame of the same page instead, with a worker's interface on both sides.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: source, onload: resolve, onerror: reject })
          inside.document.body.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...sources) => {
        for (const source of sources) await load(source)
      }
      this.terminate = () => frame.remove()
      this.inside = inside
      this.ready = load(new URL(url, location.href).href)
    }

    postMessage(data) {
      this.ready.then(() => {
        this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
      })
    }
  }
}
