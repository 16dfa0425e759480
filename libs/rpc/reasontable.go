package rpc

import (
	"google.golang.org/grpc/codes"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// Short names that keep the table readable.
const (
	notDone = typev1.Outcome_OUTCOME_NOT_DONE
	unknown = typev1.Outcome_OUTCOME_UNKNOWN

	retry         = typev1.Action_ACTION_RETRY
	reopen        = typev1.Action_ACTION_REOPEN
	rejoin        = typev1.Action_ACTION_REJOIN
	dropPartition = typev1.Action_ACTION_DROP_PARTITION
	choose        = typev1.Action_ACTION_CHOOSE
	stop          = typev1.Action_ACTION_STOP
	fix           = typev1.Action_ACTION_FIX
)

// reasonTable is the published table of reasons, in the order of their numbers.
// docs/errors.md and `leat explain` come from it. An outcome stated here is the
// cautious one; whoever knows better says so with WithOutcome. UNAVAILABLE is
// the code that any gRPC client may retry blindly.
var reasonTable = []reasonRow{
	{
		typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, codes.Internal, unknown, stop, 0,
		"Leat met a situation that its makers did not foresee.",
		"Report it with the logs of the answering process around this moment; its log names the cause.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, codes.InvalidArgument, notDone, fix, 0,
		"The request is malformed or breaks a documented rule.",
		"Change the request as the message says; sending it again unchanged gives the same answer.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, codes.InvalidArgument, notDone, fix, 0,
		"A stream message came where it may not: most often the first message was not the opening one.",
		"Send the opening message first and only once; the state tables of the service's proto tell what may follow.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE, codes.FailedPrecondition, notDone, fix, 0,
		"The two sides share no version of a feature that is needed, or the method does not exist on the answering side.",
		"Check the address, then upgrade the older side; the message names the feature.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STARTING, codes.Unavailable, notDone, retry, 200,
		"The process is starting and cannot serve yet.",
		"Wait; it serves once its log says ready. If it never does, its log tells what it waits for.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DRAINING, codes.Unavailable, notDone, reopen, 50,
		"The process is stopping in an orderly way.",
		"Open the stream on another process, or here again after its restart.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNREACHABLE, codes.Unavailable, unknown, reopen, 100,
		"The process that should answer cannot be reached, or the connection to it broke.",
		"Check that it runs and that the address is right; clients try again by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, codes.DeadlineExceeded, unknown, retry, 100,
		"The deadline passed before an answer came.",
		"Whether it was done is unknown. Ask for the state, or repeat if doing it twice is harmless; raise the deadline if it was short.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_CANCELLED, codes.Canceled, unknown, stop, 0,
		"The caller went away or cancelled the call.",
		"Nothing to do, if the cancelling was meant.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, codes.ResourceExhausted, notDone, fix, 0,
		"A documented limit of this client or process is reached; the metadata names it.",
		"Ask for less at once, or raise the named limit.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_THROTTLED, codes.ResourceExhausted, notDone, retry, 1000,
		"A byte-rate quota is used up for now.",
		"Wait for the retry delay; ask the operator for a larger quota if it happens often.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, codes.Unauthenticated, notDone, stop, 0,
		"The caller did not prove who it is.",
		"Give valid credentials.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_NOT_AUTHORIZED, codes.PermissionDenied, notDone, stop, 0,
		"The caller is known and may not do this.",
		"Ask the operator for the permission that the message names.",
	},

	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, codes.NotFound, notDone, fix, 0,
		"No topic of that name or id exists.",
		"Check the spelling with `leat topic list`, or create it with `leat topic create`.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, codes.NotFound, notDone, fix, 0,
		"The topic has no partition of that number.",
		"Partitions count from 0; `leat topic describe` shows how many there are.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_TOPIC_EXISTS, codes.AlreadyExists, notDone, fix, 0,
		"A topic of that name exists.",
		"Use it, choose another name, or delete it first.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, codes.InvalidArgument, notDone, fix, 0,
		"The topic name is not allowed, or collides with an existing one that differs only in '.' and '_'.",
		"Use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', other than '.' and '..'.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS, codes.InvalidArgument, notDone, fix, 0,
		"The number of partitions is not allowed.",
		"Choose a number within the range that the message names.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR, codes.InvalidArgument, notDone, fix, 0,
		"The replication factor is not allowed, or more than the brokers there are.",
		"Choose one that the message allows, or start more brokers.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG, codes.InvalidArgument, notDone, fix, 0,
		"A config key is unknown or gone, or its value is not allowed.",
		"The message names the nearest key, what replaced it, or the range.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, codes.NotFound, unknown, dropPartition, 0,
		"The topic is being deleted, or was, while the request waited.",
		"Stop working on it; a new topic of the same name is another topic.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INTERNAL_TOPIC, codes.FailedPrecondition, notDone, fix, 0,
		"The topic belongs to Leat itself and cannot be changed this way.",
		"Leave it alone; its settings are set in the services' configuration.",
	},

	{
		typev1.ErrorReason_ERROR_REASON_NOT_LEADER, codes.Aborted, notDone, retry, 20,
		"The asked broker does not lead the partition.",
		"Ask the leader in the hint, or refresh the metadata; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, codes.Unavailable, notDone, retry, 100,
		"The partition has no leader at the moment.",
		"Wait for an election; if it lasts, start the brokers that hold its replicas (`leat topic describe`).",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH, codes.FailedPrecondition, notDone, retry, 20,
		"The request names an older leader epoch than the answering broker's.",
		"Refresh the metadata and ask again; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, codes.Unavailable, notDone, retry, 50,
		"The request names a newer leader epoch than the answering broker has heard of.",
		"Ask again shortly: the broker's metadata is catching up.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, codes.FailedPrecondition, notDone, stop, 0,
		"The request comes from, or is meant for, an earlier life of a process.",
		"The older process stops; a newer one has taken its place.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH, codes.FailedPrecondition, notDone, retry, 20,
		"The request names an older partition epoch than the partition's record.",
		"Wait for the newer record on the metadata stream, then decide anew.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STALE_CONTROLLER, codes.FailedPrecondition, notDone, stop, 0,
		"The command comes from a controller that no longer leads.",
		"The controller steps down; the elected one repeats what is still needed.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE, codes.Unavailable, notDone, retry, 200,
		"No controller leads at the moment.",
		"Wait for an election; if it lasts, check that controllers and etcd run (`leat cluster describe`).",
	},
	{
		typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER, codes.Aborted, notDone, retry, 50,
		"The asked controller does not lead.",
		"Ask the one in the hint; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, codes.Unavailable, unknown, retry, 500,
		"etcd does not answer; changes of metadata wait, records go on flowing.",
		"Bring etcd's quorum back.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED, codes.FailedPrecondition, notDone, stop, 0,
		"etcd went back in time, for example by a restore from a backup.",
		"Service stops until an operator has restored the mesh; do not start with the old data by force.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID, codes.FailedPrecondition, notDone, stop, 0,
		"Another process runs with this kind and id.",
		"Stop the other one, or give this one another node.id.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER, codes.FailedPrecondition, notDone, stop, 0,
		"The data directory belongs to another cluster or another broker.",
		"Point log.dirs at the right directory, or etcd.endpoints and etcd.prefix at the right cluster.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND, codes.Unavailable, notDone, retry, 50,
		"The answering process has not yet seen the metadata that the request demands.",
		"Ask again shortly, or ask another process.",
	},

	{
		typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, codes.Unavailable, notDone, retry, 200,
		"Fewer in-sync replicas than min.insync.replicas; nothing was appended.",
		"Bring brokers back, or lower min.insync.replicas of the topic; clients try again by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND, codes.Aborted, unknown, retry, 200,
		"The batch was appended, then the in-sync set shrank below min.insync.replicas.",
		"It may yet be committed; sending it again may store it twice unless the producer is idempotent.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument, notDone, fix, 0,
		"An encoded batch or record is larger than max.message.bytes of the topic.",
		"Send smaller records, compress them, or raise max.message.bytes; other records are not concerned.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_RECORD, codes.InvalidArgument, notDone, fix, 0,
		"A record or batch breaks the format.",
		"Mend the client that encoded it; the message tells the field.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, codes.DataLoss, notDone, fix, 0,
		"A batch's checksum does not match its bytes.",
		"It was damaged on the way or encoded wrongly: encode and send it again; look at the network and memory of the client's host if it recurs.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, codes.FailedPrecondition, notDone, stop, 0,
		"A batch's sequence does not follow the producer's last one.",
		"An earlier batch was lost: the producer takes a new epoch before it goes on.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED, codes.FailedPrecondition, notDone, stop, 0,
		"A newer epoch of the producer id exists.",
		"Another producer has taken over; close this one.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID, codes.FailedPrecondition, notDone, stop, 0,
		"Nothing is known of the producer id here.",
		"The producer takes a new epoch before it goes on.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE, codes.AlreadyExists, unknown, stop, 0,
		"The batch cannot be told from a retry older than the last five.",
		"It was most likely stored before; the producer takes a new epoch before it goes on.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_SHARD_FENCED, codes.FailedPrecondition, notDone, stop, 0,
		"A produce to a shard lacks its fence or carries an older one.",
		"The older owner of the shard stops serving it; applications do not write to internal topics.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST, codes.Aborted, unknown, retry, 100,
		"The connection broke after the batch had been sent and before its answer came.",
		"The batch may be stored; sending it again may store it twice unless the producer is idempotent.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED, codes.Aborted, notDone, dropPartition, 0,
		"An earlier failure of the partition stopped what followed it, as the producer asked.",
		"Deal with the first failure, then send the rest again in order.",
	},

	{
		typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, codes.OutOfRange, notDone, choose, 0,
		"The offset lies outside the log: below its start or above its end.",
		"Choose a position between the log start and the end (`leat topic offsets`).",
	},
	{
		typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE, codes.Unavailable, notDone, retry, 50,
		"The offset exists and cannot be served yet, because a new leader is confirming it.",
		"Ask again shortly; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED, codes.DataLoss, notDone, choose, 0,
		"The log was cut below a position that the client had read, by an unclean election.",
		"Choose where to go on; what was read beyond the cut is gone from the log.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_CORRUPT_LOG, codes.DataLoss, notDone, choose, 0,
		"Stored bytes are damaged; the metadata names the file and the place.",
		"Read on behind the damage, and have the operator replace the replica.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE, codes.Unavailable, unknown, retry, 500,
		"The disk of the replica failed and is out of use until the broker restarts.",
		"Replace the disk; other replicas take over where there are some.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_DISK_FULL, codes.ResourceExhausted, notDone, retry, 1000,
		"The disk is full; reads and deletes go on.",
		"Free space, shorten retention, or add brokers; it recovers by itself.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD, codes.Unavailable, notDone, retry, 500,
		"The replica is kept out of service because its log was found damaged or cut.",
		"Its log tells the place; it is replaced from the other replicas, or by the operator where there are none.",
	},

	{
		typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR, codes.Aborted, notDone, retry, 50,
		"The asked coordinator does not own the group's shard.",
		"Ask the one in the hint; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE, codes.Unavailable, notDone, retry, 100,
		"The group's shard has no serving owner yet.",
		"Wait; if it lasts, check that a coordinator runs (`leat cluster describe`).",
	},
	{
		typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, codes.Unavailable, notDone, retry, 100,
		"The shard's owner is still reading its state.",
		"Ask again shortly; clients do so by themselves.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, codes.FailedPrecondition, notDone, rejoin, 0,
		"The group has no such member, or no longer.",
		"Drop all partitions and join anew.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_MEMBER_FENCED, codes.FailedPrecondition, notDone, rejoin, 0,
		"The member's epoch is not current: its session lapsed or its partitions moved on.",
		"Drop all partitions and join anew.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED, codes.FailedPrecondition, notDone, stop, 0,
		"A newer process uses the same group.instance.id.",
		"Stop this one, or give each process an instance id of its own.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED, codes.Aborted, notDone, stop, 0,
		"A newer stream of the same member took over.",
		"Stop this stream; the newer one carries on.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_STALE_COMMIT, codes.FailedPrecondition, notDone, dropPartition, 0,
		"The commit names a partition that the member does not hold.",
		"Stop working on that partition; its new owner reads from the last commit.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP, codes.NotFound, notDone, fix, 0,
		"No group of that name exists.",
		"Check the spelling with `leat group list`; a group comes into being when its first member joins or commits.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY, codes.FailedPrecondition, notDone, fix, 0,
		"The group has members, which the request does not allow.",
		"Stop its members first.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_INVALID_GROUP, codes.InvalidArgument, notDone, fix, 0,
		"The group name is not allowed.",
		"Use 1 to 255 bytes of UTF-8.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_OFFSET_METADATA_TOO_LARGE, codes.InvalidArgument, notDone, fix, 0,
		"The metadata of a committed offset is longer than allowed.",
		"Keep it within 4 KiB.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_REVOCATION_TIMEOUT, codes.FailedPrecondition, notDone, retry, 1000,
		"A member did not give a partition up in time for its offset to be reset; it keeps the partition, from its last commit on: records that it had in hand come again.",
		"Allow it more time, or stop the member; `leat group describe` tells whether it is stuck.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_RESET_IN_PROGRESS, codes.Aborted, notDone, retry, 1000,
		"Another reset of the partition's offset is under way.",
		"Look at what it did, then reset again if that is still wanted.",
	},
	{
		typev1.ErrorReason_ERROR_REASON_NO_COMMITTED_OFFSET, codes.FailedPrecondition, notDone, choose, 0,
		"The group has no committed offset of the partition, and the reset policy is none.",
		"Seek to where it is to start, or set an offset with `leat group reset`.",
	},
}
