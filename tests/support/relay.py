"""A TCP relay between a client and a server on this machine. It counts bytes, delays them, or cuts connections."""

import selectors
import socket
import threading
import time

CHUNK = 1 << 18


class Relay:
    """Listens on `port`, and connects each client to `target`, another port of 127.0.0.1.

    `there`, `back`: the number of bytes sent to the target and from it. While `holds` is set, the relay silently passes
    nothing, as if packets were lost. `holds_at`: set `holds` before the piece of data with these bytes. `delay`: seconds
    of delay for each piece.
    """

    def __init__(self, target):
        self.target, self.there, self.back = target, 0, 0
        self.holds, self.delay, self.holds_at = threading.Event(), 0.0, None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open, self._ended = [], False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        while self.holds.is_set() and not self._ended:
            time.sleep(0.02)
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        pair = client, server
        self._open.append(pair)
        with selectors.DefaultSelector() as events:
            events.register(client, selectors.EVENT_READ, server)
            events.register(server, selectors.EVENT_READ, client)
            try:
                while True:
                    for key, _ in events.select(0.1):
                        while self.holds.is_set():
                            time.sleep(0.02)
                        data = key.fileobj.recv(CHUNK)
                        if not data:
                            return
                        if self.holds_at is not None and self.holds_at in data:
                            self.holds_at = None
                            self.holds.set()
                            while self.holds.is_set():
                                time.sleep(0.02)
                        if self.delay:
                            time.sleep(self.delay)
                        key.data.sendall(data)
                        if key.data is server:
                            self.there += len(data)
                        else:
                            self.back += len(data)
                    if self._ended:
                        return
            except (OSError, ValueError):  # the connection is cut
                pass
            finally:
                for end in pair:
                    end.close()
                if pair in self._open:
                    self._open.remove(pair)

    def cut(self):
        """Cut all connections."""
        for pair in list(self._open):
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self._ended = True
        self.holds.clear()
        self._listener.close()
        self.cut()
