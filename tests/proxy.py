"""A proxy in front of a gRPC server: it hands every call on, whatever its service, and may spoil it on the way."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import grpc

from tests.servers import PATIENCE

# The name of an rpc, its requests, and what hands them on; returns the answers. On the wire all calls are streams.
Forward = Callable[[Iterator[bytes]], Iterator[bytes]]
Spoil = Callable[[str, Iterator[bytes], Forward], Iterator[bytes]]


class RefusalError(grpc.RpcError):
    """How a proxy makes a call fail; it looks like the error of a call."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Any = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailers


class LostConnection:
    """Breaks a training's connection once a report was answered, and then holds the answers to CreateJob back."""

    def __init__(self) -> None:
        self.is_answered, self.may_come = threading.Event(), threading.Event()  # the second CreateJob, and its answer
        self._seen: set[str] = set()

    def __call__(self, rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        """Hand a call on, or not."""
        is_first = rpc not in self._seen
        self._seen.add(rpc)
        if rpc == "Coordinate" and is_first:
            yield from islice(forward(requests), 1)
        if rpc == "Coordinate" or (rpc == "EndIteration" and not is_first):
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
        for data in forward(requests):
            if rpc == "CreateJob" and not is_first:
                self.is_answered.set()
                self.may_come.wait(PATIENCE)
            yield data


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, spoil: Spoil) -> None:
        self._channel, self._spoil = channel, spoil

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(partial(self._serve, handler_call_details.method))

    def _serve(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        def forward(requests: Iterator[bytes]) -> Iterator[bytes]:
            call: Any = self._channel.stream_stream(method)
            answers = call(requests, metadata=context.invocation_metadata())
            context.add_callback(answers.cancel)
            return iter(answers)

        try:
            yield from self._spoil(method.rpartition("/")[2], requests, forward)
        except grpc.RpcError as error:
            failed: Any = error  # is a call as well, or a refusal
            context.set_trailing_metadata(tuple(failed.trailing_metadata() or ()))
            context.abort(failed.code(), failed.details() or "")


@contextmanager
def proxied(target: str, spoil: Spoil) -> Iterator[str]:
    """The address of a proxy in front of a server."""
    with ThreadPoolExecutor(32) as threads, grpc.insecure_channel(target) as channel:
        server = grpc.server(threads, [_Handler(channel, spoil)])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()
