"""A network that ends at this machine, so that clients which call home are found out."""
import os
import socket
import sys

LEFT = []  # the addresses outside that somebody wanted


def _is_here(host):
    return host in ("127.0.0.1", "::1", "localhost", "", None)


def stay_on_this_machine(fatal=False):
    """From here on only loopback can be reached; attempts are kept, or end the process."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def refuse(host):
        LEFT.append(host)
        if fatal:
            sys.stderr.write(f"outside this machine: {host}\n")
            sys.stderr.flush()
            os._exit(99)
        raise socket.gaierror(f"outside this machine: {host}")

    def guarded_connect(self, address):
        if isinstance(address, tuple) and not _is_here(address[0]):
            refuse(address[0])
        return connect(self, address)

    def guarded_look_up(host, *rest, **more):
        name = host.decode() if isinstance(host, bytes) else host
        if not _is_here(name):
            refuse(name)
        return look_up(host, *rest, **more)

    socket.socket.connect, socket.getaddrinfo = guarded_connect, guarded_look_up
