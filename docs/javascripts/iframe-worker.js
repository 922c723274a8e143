"use strict";
// Browsers start no worker for a page that is read from the disk: an iframe runs its script there, so that the site's search works.
// The search loads no further scripts for documents in English.
if (location.protocol === "file:")
    window.Worker = class extends EventTarget {
        constructor(url) {
            super();
            this.url = String(url);
            const frame = document.createElement("iframe");
            frame.hidden = true;
            document.body.append(frame);
            this.frame = frame;
            const inner = frame.contentWindow, script = inner.document.createElement("script");
            // what the script answers comes to the page as messages of this worker
            inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
            inner.importScripts = () => {};
            this.ready = new Promise((loaded, failed) => {
                script.onload = loaded;
                script.onerror = failed;
            });
            script.src = this.url;
            inner.document.body.append(script);
        }
        set onmessage(listener) { this.addEventListener("message", listener); }
        set onerror(listener) { this.addEventListener("error", listener); }
        postMessage(data) {
            this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
        }
        terminate() { this.frame.remove(); }
    };
