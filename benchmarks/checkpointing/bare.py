"""The limit of a commit: PUTs of the same objects from the same memory, as fast as sockets take them, and nothing else.

It is started with the arena's descriptor and prints the seconds of its loop. With `--crc` each body has the CRC64NVME
that S3 verifies, as every upload should.
"""

from __future__ import annotations

import argparse
import base64
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

from awscrt.checksums import crc64nvme

from spotproof.checkpoint.chunks import spans
from spotproof.contract.arena import HEADER_BYTES

THREADS = (2, 4, 8)


def best_s(fd: int, url: str, *, chunk_bytes: int, crc: bool = True, threads: Sequence[int] = THREADS) -> float:
    """Seconds of the fastest of several loops, each in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.checkpointing.bare", str(fd), url, "--chunk", str(chunk_bytes)]
    argv += ["--crc"] if crc else []
    runs = [
        subprocess.run([*argv, "--threads", str(count)], pass_fds=(fd,), stdout=subprocess.PIPE, check=True, text=True)
        for count in threads
    ]
    return min(float(run.stdout) for run in runs)


def _send(address: tuple[str, int], image: memoryview, work: SimpleQueue[tuple[int, int]], *, crc: bool) -> None:
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                offset, size = work.get_nowait()
            except Empty:
                return
            data = image[offset : offset + size]
            head = f"PUT /bare/{offset} HTTP/1.1\r\nHost: sink\r\nContent-Length: {size}\r\n"
            if crc:
                checksum = base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()
                head += f"x-amz-checksum-crc64nvme: {checksum}\r\n"
            sock.sendall(head.encode() + b"\r\n")
            sock.sendall(data)
            if b" 503 " in _answered(sock):
                work.put((offset, size))


def _answered(sock: socket.socket) -> bytes:
    """The head of an answer; its body, an error's, is read too."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += sock.recv(4096)
    head, _, rest = seen.partition(b"\r\n\r\n")
    length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split()[1])
    while len(rest) < length:
        rest += sock.recv(4096)
    return head


def main() -> int:
    """Send, and print how long it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fd", type=int)
    parser.add_argument("url")
    parser.add_argument("--chunk", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--crc", action="store_true")
    asked = parser.parse_args()
    parts = urlsplit(asked.url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    memory = mmap.mmap(asked.fd, os.fstat(asked.fd).st_size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    image = memoryview(memory)[HEADER_BYTES:]
    for at in range(0, len(image), mmap.PAGESIZE):
        image[at]  # mapped beforehand: the limit is the wire's
    work: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for span in spans(len(image), asked.chunk):
        work.put(span)
    senders = [
        threading.Thread(target=_send, args=(address, image, work), kwargs={"crc": asked.crc})
        for _ in range(asked.threads)
    ]
    begun = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    print(time.perf_counter() - begun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
