from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndRunRequest(_message.Message):
    __slots__ = ("exit_code",)
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    def __init__(self, exit_code: _Optional[int] = ...) -> None: ...

class EndRunReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("hello", "answer", "heartbeat", "draining")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    answer: WorkerAnswer
    heartbeat: Heartbeat
    draining: Draining
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., answer: _Optional[_Union[WorkerAnswer, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("protocol_version", "version", "name", "fingerprint", "slots", "trouble", "store_only", "store", "store_id")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    STORE_ONLY_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    version: str
    name: str
    fingerprint: str
    slots: int
    trouble: str
    store_only: bool
    store: str
    store_id: str
    def __init__(self, protocol_version: _Optional[int] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., slots: _Optional[int] = ..., trouble: _Optional[str] = ..., store_only: bool = ..., store: _Optional[str] = ..., store_id: _Optional[str] = ...) -> None: ...

class WorkerAnswer(_message.Message):
    __slots__ = ("call", "result", "failure")
    CALL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    call: int
    result: bytes
    failure: WorkerFailure
    def __init__(self, call: _Optional[int] = ..., result: _Optional[bytes] = ..., failure: _Optional[_Union[WorkerFailure, _Mapping]] = ...) -> None: ...

class WorkerFailure(_message.Message):
    __slots__ = ("kind", "message", "ran_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    ran_s: float
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., ran_s: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("cpu_s", "crashed", "timed_out", "restarted")
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    CRASHED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    cpu_s: float
    crashed: int
    timed_out: int
    restarted: int
    def __init__(self, cpu_s: _Optional[float] = ..., crashed: _Optional[int] = ..., timed_out: _Optional[int] = ..., restarted: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "request", "heartbeat", "cancel", "goodbye")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    request: WorkerRequest
    heartbeat: Heartbeat
    cancel: int
    goodbye: Goodbye
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., request: _Optional[_Union[WorkerRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., cancel: _Optional[int] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("exit_code",)
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    def __init__(self, exit_code: _Optional[int] = ...) -> None: ...

class WorkerRequest(_message.Message):
    __slots__ = ("call", "request", "timeout_s")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    call: int
    request: bytes
    timeout_s: float
    def __init__(self, call: _Optional[int] = ..., request: _Optional[bytes] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class RegisterDatasetRequest(_message.Message):
    __slots__ = ("protocol_version", "source", "recipe", "key_list", "run_id", "renew", "begins", "alias", "versions", "classes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    KEY_LIST_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    source: str
    recipe: str
    key_list: str
    run_id: str
    renew: bool
    begins: bool
    alias: str
    versions: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., source: _Optional[str] = ..., recipe: _Optional[str] = ..., key_list: _Optional[str] = ..., run_id: _Optional[str] = ..., renew: bool = ..., begins: bool = ..., alias: _Optional[str] = ..., versions: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("dataset_id", "listed", "wait_s")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    dataset_id: bytes
    listed: int
    wait_s: float
    def __init__(self, dataset_id: _Optional[bytes] = ..., listed: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("protocol_version", "dataset_id", "ready", "listed", "size", "fingerprint", "classes", "label_dtype", "warnings", "packing")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    LABEL_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    dataset_id: bytes
    ready: bool
    listed: int
    size: int
    fingerprint: bytes
    classes: _containers.RepeatedScalarFieldContainer[str]
    label_dtype: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    packing: bool
    def __init__(self, protocol_version: _Optional[int] = ..., dataset_id: _Optional[bytes] = ..., ready: bool = ..., listed: _Optional[int] = ..., size: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., classes: _Optional[_Iterable[str]] = ..., label_dtype: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., packing: bool = ...) -> None: ...

class GetSamplesRequest(_message.Message):
    __slots__ = ("dataset_id", "start", "with_keys")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    WITH_KEYS_FIELD_NUMBER: _ClassVar[int]
    dataset_id: bytes
    start: int
    with_keys: bool
    def __init__(self, dataset_id: _Optional[bytes] = ..., start: _Optional[int] = ..., with_keys: bool = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("labels", "bucket", "keys", "key_lengths", "fingerprint")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    labels: bytes
    bucket: str
    keys: bytes
    key_lengths: bytes
    fingerprint: bytes
    def __init__(self, labels: _Optional[bytes] = ..., bucket: _Optional[str] = ..., keys: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class OpenJobRequest(_message.Message):
    __slots__ = ("dataset_id", "job", "batch_size", "replicas", "seed", "shuffle", "drop_last", "rank", "epoch", "position", "fills", "indices", "weights", "draws", "repeats", "lengths", "order_sent", "mix", "member", "mix_run")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    DROP_LAST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ORDER_SENT_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MIX_RUN_FIELD_NUMBER: _ClassVar[int]
    dataset_id: bytes
    job: str
    batch_size: int
    replicas: int
    seed: int
    shuffle: bool
    drop_last: bool
    rank: int
    epoch: int
    position: int
    fills: bool
    indices: bytes
    weights: bytes
    draws: int
    repeats: int
    lengths: bytes
    order_sent: int
    mix: _containers.RepeatedScalarFieldContainer[int]
    member: int
    mix_run: int
    def __init__(self, dataset_id: _Optional[bytes] = ..., job: _Optional[str] = ..., batch_size: _Optional[int] = ..., replicas: _Optional[int] = ..., seed: _Optional[int] = ..., shuffle: bool = ..., drop_last: bool = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., fills: bool = ..., indices: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., draws: _Optional[int] = ..., repeats: _Optional[int] = ..., lengths: _Optional[bytes] = ..., order_sent: _Optional[int] = ..., mix: _Optional[_Iterable[int]] = ..., member: _Optional[int] = ..., mix_run: _Optional[int] = ...) -> None: ...

class OrderPart(_message.Message):
    __slots__ = ("job", "epoch", "start", "indices")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    start: int
    indices: bytes
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., indices: _Optional[bytes] = ...) -> None: ...

class OrderReceived(_message.Message):
    __slots__ = ("indices",)
    INDICES_FIELD_NUMBER: _ClassVar[int]
    indices: int
    def __init__(self, indices: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job", "cache", "batches_per_epoch", "warnings", "kept", "store", "store_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    cache: str
    batches_per_epoch: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    kept: str
    store: str
    store_id: str
    def __init__(self, job: _Optional[str] = ..., cache: _Optional[str] = ..., batches_per_epoch: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., kept: _Optional[str] = ..., store: _Optional[str] = ..., store_id: _Optional[str] = ...) -> None: ...

class NextBatchesRequest(_message.Message):
    __slots__ = ("job", "rank", "epoch", "position", "count", "yielded", "with_keys", "sees_store")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    YIELDED_FIELD_NUMBER: _ClassVar[int]
    WITH_KEYS_FIELD_NUMBER: _ClassVar[int]
    SEES_STORE_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    epoch: int
    position: int
    count: int
    yielded: int
    with_keys: bool
    sees_store: bool
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., count: _Optional[int] = ..., yielded: _Optional[int] = ..., with_keys: bool = ..., sees_store: bool = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("batches", "packs")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PACKS_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    packs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., packs: _Optional[_Iterable[str]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("position", "batch_id", "sample_ids", "labels", "padding", "keys", "resident", "failed", "repetitions", "pack_of", "offsets", "lengths")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REPETITIONS_FIELD_NUMBER: _ClassVar[int]
    PACK_OF_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    position: int
    batch_id: bytes
    sample_ids: bytes
    labels: bytes
    padding: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    resident: int
    failed: int
    repetitions: bytes
    pack_of: bytes
    offsets: bytes
    lengths: bytes
    def __init__(self, position: _Optional[int] = ..., batch_id: _Optional[bytes] = ..., sample_ids: _Optional[bytes] = ..., labels: _Optional[bytes] = ..., padding: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., resident: _Optional[int] = ..., failed: _Optional[int] = ..., repetitions: _Optional[bytes] = ..., pack_of: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., lengths: _Optional[bytes] = ...) -> None: ...

class FillUpRequest(_message.Message):
    __slots__ = ("job", "max_bytes", "max_usd", "to_store")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_USD_FIELD_NUMBER: _ClassVar[int]
    TO_STORE_FIELD_NUMBER: _ClassVar[int]
    job: str
    max_bytes: int
    max_usd: float
    to_store: bool
    def __init__(self, job: _Optional[str] = ..., max_bytes: _Optional[int] = ..., max_usd: _Optional[float] = ..., to_store: bool = ...) -> None: ...

class Filling(_message.Message):
    __slots__ = ("there", "failed", "size_bytes", "ended", "failures")
    THERE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    there: int
    failed: int
    size_bytes: int
    ended: str
    failures: _containers.RepeatedCompositeFieldContainer[SampleStatus]
    def __init__(self, there: _Optional[int] = ..., failed: _Optional[int] = ..., size_bytes: _Optional[int] = ..., ended: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[SampleStatus, _Mapping]]] = ...) -> None: ...

class GetBatchStatusRequest(_message.Message):
    __slots__ = ("batch_ids",)
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, batch_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BatchStatuses(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[BatchStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[BatchStatus, _Mapping]]] = ...) -> None: ...

class BatchStatus(_message.Message):
    __slots__ = ("batch_id", "known", "samples", "resident", "in_flight", "failed", "occurrences", "details", "events")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    batch_id: bytes
    known: bool
    samples: int
    resident: int
    in_flight: int
    failed: int
    occurrences: _containers.RepeatedCompositeFieldContainer[Occurrence]
    details: _containers.RepeatedCompositeFieldContainer[SampleStatus]
    events: _containers.RepeatedCompositeFieldContainer[BatchEvent]
    def __init__(self, batch_id: _Optional[bytes] = ..., known: bool = ..., samples: _Optional[int] = ..., resident: _Optional[int] = ..., in_flight: _Optional[int] = ..., failed: _Optional[int] = ..., occurrences: _Optional[_Iterable[_Union[Occurrence, _Mapping]]] = ..., details: _Optional[_Iterable[_Union[SampleStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[BatchEvent, _Mapping]]] = ...) -> None: ...

class BatchEvent(_message.Message):
    __slots__ = ("occurrence", "seconds_ago", "what")
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    occurrence: Occurrence
    seconds_ago: float
    what: str
    def __init__(self, occurrence: _Optional[_Union[Occurrence, _Mapping]] = ..., seconds_ago: _Optional[float] = ..., what: _Optional[str] = ...) -> None: ...

class Occurrence(_message.Message):
    __slots__ = ("job", "epoch", "position", "rank")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    position: int
    rank: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class SampleStatus(_message.Message):
    __slots__ = ("sample_id", "key", "state", "message")
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sample_id: bytes
    key: str
    state: str
    message: str
    def __init__(self, sample_id: _Optional[bytes] = ..., key: _Optional[str] = ..., state: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CloseJobRequest(_message.Message):
    __slots__ = ("job", "rank")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class CloseJobReply(_message.Message):
    __slots__ = ("closed",)
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    def __init__(self, closed: bool = ...) -> None: ...

class GetJobStatsRequest(_message.Message):
    __slots__ = ("jobs", "with_stalls", "history")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    WITH_STALLS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    with_stalls: bool
    history: bool
    def __init__(self, jobs: _Optional[_Iterable[str]] = ..., with_stalls: bool = ..., history: bool = ...) -> None: ...

class JobStatsList(_message.Message):
    __slots__ = ("jobs", "cache", "coordinating", "prices", "executors", "history", "teams", "warned", "workers")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    COORDINATING_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    TEAMS_FIELD_NUMBER: _ClassVar[int]
    WARNED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStats]
    cache: CacheStats
    coordinating: Coordinating
    prices: _containers.RepeatedCompositeFieldContainer[ExecutorPrices]
    executors: _containers.RepeatedCompositeFieldContainer[ExecutorStats]
    history: _containers.RepeatedCompositeFieldContainer[JobStats]
    teams: _containers.RepeatedCompositeFieldContainer[TeamStats]
    warned: _containers.RepeatedCompositeFieldContainer[Warned]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStats]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStats, _Mapping]]] = ..., cache: _Optional[_Union[CacheStats, _Mapping]] = ..., coordinating: _Optional[_Union[Coordinating, _Mapping]] = ..., prices: _Optional[_Iterable[_Union[ExecutorPrices, _Mapping]]] = ..., executors: _Optional[_Iterable[_Union[ExecutorStats, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[JobStats, _Mapping]]] = ..., teams: _Optional[_Iterable[_Union[TeamStats, _Mapping]]] = ..., warned: _Optional[_Iterable[_Union[Warned, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStats, _Mapping]]] = ...) -> None: ...

class Warned(_message.Message):
    __slots__ = ("at_s", "level", "times", "text")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    level: str
    times: int
    text: str
    def __init__(self, at_s: _Optional[float] = ..., level: _Optional[str] = ..., times: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("name", "slots", "cpu_s", "waits", "crashed", "timed_out", "restarted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    CRASHED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    cpu_s: float
    waits: bool
    crashed: int
    timed_out: int
    restarted: int
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., cpu_s: _Optional[float] = ..., waits: bool = ..., crashed: _Optional[int] = ..., timed_out: _Optional[int] = ..., restarted: _Optional[int] = ...) -> None: ...

class TeamStats(_message.Message):
    __slots__ = ("name", "share", "priority", "max_usd", "jobs", "in_flight", "requests", "usd", "stopped")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_USD_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    name: str
    share: float
    priority: int
    max_usd: float
    jobs: int
    in_flight: int
    requests: int
    usd: float
    stopped: bool
    def __init__(self, name: _Optional[str] = ..., share: _Optional[float] = ..., priority: _Optional[int] = ..., max_usd: _Optional[float] = ..., jobs: _Optional[int] = ..., in_flight: _Optional[int] = ..., requests: _Optional[int] = ..., usd: _Optional[float] = ..., stopped: bool = ...) -> None: ...

class Coordinating(_message.Message):
    __slots__ = ("version", "clock_s", "cache", "executors", "lambda_function", "lambda_region", "lambda_concurrency", "request_timeout_s", "lookahead_batches")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_REGION_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_BATCHES_FIELD_NUMBER: _ClassVar[int]
    version: str
    clock_s: float
    cache: str
    executors: _containers.RepeatedScalarFieldContainer[str]
    lambda_function: str
    lambda_region: str
    lambda_concurrency: int
    request_timeout_s: float
    lookahead_batches: int
    def __init__(self, version: _Optional[str] = ..., clock_s: _Optional[float] = ..., cache: _Optional[str] = ..., executors: _Optional[_Iterable[str]] = ..., lambda_function: _Optional[str] = ..., lambda_region: _Optional[str] = ..., lambda_concurrency: _Optional[int] = ..., request_timeout_s: _Optional[float] = ..., lookahead_batches: _Optional[int] = ...) -> None: ...

class ExecutorStats(_message.Message):
    __slots__ = ("name", "capacity", "concurrency", "in_flight", "requests", "samples", "usd", "trouble", "ended")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity: int
    concurrency: int
    in_flight: int
    requests: int
    samples: int
    usd: float
    trouble: str
    ended: _containers.RepeatedCompositeFieldContainer[RequestsEnded]
    def __init__(self, name: _Optional[str] = ..., capacity: _Optional[int] = ..., concurrency: _Optional[int] = ..., in_flight: _Optional[int] = ..., requests: _Optional[int] = ..., samples: _Optional[int] = ..., usd: _Optional[float] = ..., trouble: _Optional[str] = ..., ended: _Optional[_Iterable[_Union[RequestsEnded, _Mapping]]] = ...) -> None: ...

class RequestsEnded(_message.Message):
    __slots__ = ("outcome", "requests")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    requests: int
    def __init__(self, outcome: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class ExecutorPrices(_message.Message):
    __slots__ = ("name", "invocation", "gb_s", "source_request", "source_gb", "record_gb", "hour", "coordinator_hour")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_FIELD_NUMBER: _ClassVar[int]
    GB_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_GB_FIELD_NUMBER: _ClassVar[int]
    RECORD_GB_FIELD_NUMBER: _ClassVar[int]
    HOUR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_HOUR_FIELD_NUMBER: _ClassVar[int]
    name: str
    invocation: float
    gb_s: float
    source_request: float
    source_gb: float
    record_gb: float
    hour: float
    coordinator_hour: float
    def __init__(self, name: _Optional[str] = ..., invocation: _Optional[float] = ..., gb_s: _Optional[float] = ..., source_request: _Optional[float] = ..., source_gb: _Optional[float] = ..., record_gb: _Optional[float] = ..., hour: _Optional[float] = ..., coordinator_hour: _Optional[float] = ...) -> None: ...

class JobStats(_message.Message):
    __slots__ = ("job", "source", "epoch", "position", "batches_read", "cache_hits", "cache_misses", "samples_reused", "samples_produced", "samples_failed", "retries", "invocations", "requests_in_flight", "fetch_s", "decode_s", "push_s", "read_s", "wait_s", "source_bytes", "record_bytes", "lookahead_batches", "interval_s", "stalls", "hedges", "lapsed", "gb_s", "source_requests", "read_bytes", "usd", "functions_usd", "source_requests_usd", "transfer_usd", "cache_usd", "coordinator_usd", "stall_causes", "recent_stalls", "samples_restored", "samples_straight", "store_requests", "store_bytes", "store_requests_usd", "opened_s", "closed_s", "ranks", "lapsed_ranks", "team")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_READ_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_REUSED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PRODUCED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FAILED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    INVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    READ_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_BATCHES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    STALLS_FIELD_NUMBER: _ClassVar[int]
    HEDGES_FIELD_NUMBER: _ClassVar[int]
    LAPSED_FIELD_NUMBER: _ClassVar[int]
    GB_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_USD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REQUESTS_USD_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_USD_FIELD_NUMBER: _ClassVar[int]
    CACHE_USD_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_USD_FIELD_NUMBER: _ClassVar[int]
    STALL_CAUSES_FIELD_NUMBER: _ClassVar[int]
    RECENT_STALLS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_RESTORED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_STRAIGHT_FIELD_NUMBER: _ClassVar[int]
    STORE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_REQUESTS_USD_FIELD_NUMBER: _ClassVar[int]
    OPENED_S_FIELD_NUMBER: _ClassVar[int]
    CLOSED_S_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LAPSED_RANKS_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    job: str
    source: str
    epoch: int
    position: int
    batches_read: int
    cache_hits: int
    cache_misses: int
    samples_reused: int
    samples_produced: int
    samples_failed: int
    retries: int
    invocations: int
    requests_in_flight: int
    fetch_s: float
    decode_s: float
    push_s: float
    read_s: float
    wait_s: float
    source_bytes: int
    record_bytes: int
    lookahead_batches: int
    interval_s: float
    stalls: int
    hedges: int
    lapsed: bool
    gb_s: float
    source_requests: int
    read_bytes: int
    usd: float
    functions_usd: float
    source_requests_usd: float
    transfer_usd: float
    cache_usd: float
    coordinator_usd: float
    stall_causes: _containers.RepeatedCompositeFieldContainer[StallTotal]
    recent_stalls: _containers.RepeatedCompositeFieldContainer[Stall]
    samples_restored: int
    samples_straight: int
    store_requests: int
    store_bytes: int
    store_requests_usd: float
    opened_s: float
    closed_s: float
    ranks: int
    lapsed_ranks: int
    team: str
    def __init__(self, job: _Optional[str] = ..., source: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., batches_read: _Optional[int] = ..., cache_hits: _Optional[int] = ..., cache_misses: _Optional[int] = ..., samples_reused: _Optional[int] = ..., samples_produced: _Optional[int] = ..., samples_failed: _Optional[int] = ..., retries: _Optional[int] = ..., invocations: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., fetch_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., push_s: _Optional[float] = ..., read_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., source_bytes: _Optional[int] = ..., record_bytes: _Optional[int] = ..., lookahead_batches: _Optional[int] = ..., interval_s: _Optional[float] = ..., stalls: _Optional[int] = ..., hedges: _Optional[int] = ..., lapsed: bool = ..., gb_s: _Optional[float] = ..., source_requests: _Optional[int] = ..., read_bytes: _Optional[int] = ..., usd: _Optional[float] = ..., functions_usd: _Optional[float] = ..., source_requests_usd: _Optional[float] = ..., transfer_usd: _Optional[float] = ..., cache_usd: _Optional[float] = ..., coordinator_usd: _Optional[float] = ..., stall_causes: _Optional[_Iterable[_Union[StallTotal, _Mapping]]] = ..., recent_stalls: _Optional[_Iterable[_Union[Stall, _Mapping]]] = ..., samples_restored: _Optional[int] = ..., samples_straight: _Optional[int] = ..., store_requests: _Optional[int] = ..., store_bytes: _Optional[int] = ..., store_requests_usd: _Optional[float] = ..., opened_s: _Optional[float] = ..., closed_s: _Optional[float] = ..., ranks: _Optional[int] = ..., lapsed_ranks: _Optional[int] = ..., team: _Optional[str] = ...) -> None: ...

class StallTotal(_message.Message):
    __slots__ = ("cause", "batches", "wait_s")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    cause: str
    batches: int
    wait_s: float
    def __init__(self, cause: _Optional[str] = ..., batches: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Stall(_message.Message):
    __slots__ = ("rank", "epoch", "position", "cause", "wait_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    epoch: int
    position: int
    cause: str
    wait_s: float
    def __init__(self, rank: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., cause: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CacheStats(_message.Message):
    __slots__ = ("budget_bytes", "resident_bytes", "resident_samples", "in_flight_samples", "dropped_samples", "reproduced_samples", "thrashing", "needed_bytes", "total_requests_in_flight", "concurrency", "capacity", "total_usd", "usd_per_hour", "spending", "free_bytes", "cache_trouble", "store", "store_used_bytes", "store_room_bytes", "store_packs", "store_trouble")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REPRODUCED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    THRASHING_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_USD_FIELD_NUMBER: _ClassVar[int]
    USD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    SPENDING_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_PACKS_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    resident_bytes: int
    resident_samples: int
    in_flight_samples: int
    dropped_samples: int
    reproduced_samples: int
    thrashing: bool
    needed_bytes: int
    total_requests_in_flight: int
    concurrency: int
    capacity: int
    total_usd: float
    usd_per_hour: float
    spending: str
    free_bytes: int
    cache_trouble: str
    store: str
    store_used_bytes: int
    store_room_bytes: int
    store_packs: int
    store_trouble: str
    def __init__(self, budget_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., resident_samples: _Optional[int] = ..., in_flight_samples: _Optional[int] = ..., dropped_samples: _Optional[int] = ..., reproduced_samples: _Optional[int] = ..., thrashing: bool = ..., needed_bytes: _Optional[int] = ..., total_requests_in_flight: _Optional[int] = ..., concurrency: _Optional[int] = ..., capacity: _Optional[int] = ..., total_usd: _Optional[float] = ..., usd_per_hour: _Optional[float] = ..., spending: _Optional[str] = ..., free_bytes: _Optional[int] = ..., cache_trouble: _Optional[str] = ..., store: _Optional[str] = ..., store_used_bytes: _Optional[int] = ..., store_room_bytes: _Optional[int] = ..., store_packs: _Optional[int] = ..., store_trouble: _Optional[str] = ...) -> None: ...
