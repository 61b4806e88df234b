"""The coordinator's ports: one for samplers and workers, and others for health checks and metrics."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from superdl.coordinator.executors.connected_workers import Workers
from superdl.coordinator.executors.workers import WorkersExecutor, WorkServicer
from superdl.coordinator.server.grpc_server import Health, listen, listen_for_health
from superdl.coordinator.server.trust import ServerTls
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.http_port import OPEN_METRICS, Page, listen_for_gets

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping

    from superdl.coordinator.server.metrics import Metrics
    from superdl.coordinator.server.service import CoordinatorService
    from superdl.coordinator.server.settings import Settings
    from superdl.coordinator.server.tokens import Tokens

_log = logging.getLogger(__name__)

_PATIENCE_S = 30.0
_DRAIN_S = 5.0
_MAX_EXIT_CODE = 255


class Servicer(WorkServicer):
    """Serves calls from workers and, once ``service`` is set, calls from samplers.

    ``run_ended`` receives the exit code of the coordinator's run. It is ``None`` if there is no run.
    """

    def __init__(
        self, workers: Mapping[bool, Workers], run_ended: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(workers)
        self._run_ended = run_ended
        self.service: CoordinatorService | None = None
        for name in pb.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name:
            if name not in {"Work", "EndRun"}:
                setattr(self, name, partial(self._forward, name))

    async def _forward(self, name: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if self.service is None:
            reason = "the coordinator is starting and waiting for its first worker, or is shutting down"
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        return await getattr(self.service, name)(request, context)

    async def EndRun(  # noqa: N802  # the protocol's name
        self, request: pb.EndRunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.EndRunReply:
        """Stop the coordinator and its workers. Fails unless they serve a single run."""
        if self._run_ended is None or request.exit_code > _MAX_EXIT_CODE:
            reason = "the coordinator was started without --ends-with-run, or the exit code is invalid"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        for workers in self.workers.values():
            workers.send_goodbye(request.exit_code)
        self._run_ended(request.exit_code)
        return pb.EndRunReply()


class Ports:
    """The coordinator's ports, which close with ``stack``. For ``run_ended``, see :class:`Servicer`."""

    def __init__(
        self,
        settings: Settings,
        tokens: Tokens | None,
        stack: contextlib.AsyncExitStack,
        run_ended: Callable[[int], None],
    ) -> None:
        files = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._tls = ServerTls(*files) if settings.tls_cert else None
        self._settings, self._tokens, self._stack = settings, tokens, stack
        # With other executors, the decoder cannot change, because all of them must decode alike.
        patience_s = _PATIENCE_S if settings.executors == (WorkersExecutor.name,) else None
        may_decode = WorkersExecutor.name in settings.executors
        # The workers that decode and those that only save and restore, or None if they may not connect.
        self.workers = Workers(patience_s=patience_s) if may_decode else None
        self.savers = Workers(decodes=False) if settings.store_only else None
        both = {True: self.workers, False: self.savers}
        self._all_workers = {decodes: workers for decodes, workers in both.items() if workers is not None}
        self._servicer = Servicer(self._all_workers, run_ended if settings.ends_with_run else None)
        self._health = Health()
        self._health.serves = False
        self._is_open = False
        self._metrics: Metrics | None = None

    async def open_to_workers(self, store: str, store_id: Callable[[], str]) -> None:
        """Admit workers if they may decode. ``store_id`` returns the id of the store directory."""
        for workers in self._all_workers.values():
            workers.follow_store(store, store_id)
        # Their decoder determines which cached records are usable.
        if self.workers is not None:
            await self._listen()

    async def open(self, service: CoordinatorService, metrics: Metrics | None) -> None:
        """Admit all clients, and serve metrics if they are configured."""
        self._servicer.service, self._metrics = service, metrics
        if not self._is_open:
            await self._listen()
        self._health.serves = True
        if metrics is not None and self._settings.metrics_listen:
            scraped = await listen_for_gets(
                self._settings.metrics_listen,
                "metrics_listen",
                {"/metrics": Page(metrics.look, OPEN_METRICS)},
                tls=self._tls.context() if self._tls else None,
                accepts=self._tokens.accept if self._tokens else None,
            )
            self._stack.callback(scraped.close)
            scheme = "https" if self._tls else "http"
            _log.info("metrics at %s://%s/metrics", scheme, self._settings.metrics_listen)
        self._stack.callback(self._close)

    def _close(self) -> None:
        self._health.serves = False
        self._servicer.service = None
        for workers in self._all_workers.values():
            workers.close()  # or they would wait

    async def _listen(self) -> None:
        self._is_open = True
        server = await listen(
            self._settings.listen,
            self._servicer,
            tls=self._tls,
            tokens=self._tokens,
            called=self._note_call,
            health=self._health,
        )
        self._stack.push_async_callback(server.stop, _DRAIN_S)
        if self._settings.health_listen:
            probed = await listen_for_health(self._settings.health_listen, self._health)
            self._stack.push_async_callback(probed.stop, None)

    def _note_call(self, method: str, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.called(method, seconds)
