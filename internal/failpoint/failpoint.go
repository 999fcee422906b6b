// Package failpoint lets fault tests end a process between two steps of the
// life of a job, or plant a known bug that a checker must catch. Both exist
// only in binaries built with the tag "faults"; in all others Hit does
// nothing and Planted is a constant false, so that the compiler drops them.
package failpoint

// Names of the steps at which a process built with the tag "faults" can be
// ended, in the order of the life of a job.
const (
	SubmitBeforeKey      = "submit.before_key"
	SubmitAfterKey       = "submit.after_key"
	SubmitAfterPublish   = "submit.after_publish"
	ClaimBeforeStarted   = "claim.before_started"
	ClaimAfterStarted    = "claim.after_started"
	RunAfterHandler      = "run.after_handler"
	FinishAfterTerminal  = "finish.after_terminal"
	FinishAfterPublish   = "finish.after_publish"
	FinishAfterAck       = "finish.after_ack"
	RetryAfterEvent      = "retry.after_event"
	RetryAfterSchedule   = "retry.after_schedule"
	RetryAfterAck        = "retry.after_ack"
	MoverAfterPublish    = "mover.after_publish"
	MoverAfterPurge      = "mover.after_purge"
	CancelAfterEvent     = "cancel.after_event"
	CancelAfterRemove    = "cancel.after_remove"
	CancelAfterRequest   = "cancel.after_request"
	ConsequenceAfterDead = "consequence.after_dead"
	SlotAfterTake        = "slot.after_take"
	SlotAfterFree        = "slot.after_free"
	HoldAfterPublish     = "hold.after_publish"
	HoldAfterAck         = "hold.after_ack"
	ReleaseAfterTake     = "release.after_take"
	ReleaseAfterQueue    = "release.after_queue"
	ReleaseAfterPurge    = "release.after_purge"
	HookAfterPublish     = "hook.after_publish"
	HookAfterSend        = "hook.after_send"
	HookAfterSchedule    = "hook.after_schedule"
	HookAfterAck         = "hook.after_ack"
	HookAfterMove        = "hook.after_move"
	HookAfterPurge       = "hook.after_purge"
)

// Names of the steps of the way of an audit event to the trail.
const (
	AuditBeforeAck    = "audit.before_ack"    // the end of a job is recorded, its event comes again
	AuditAfterSpool   = "audit.after_spool"   // on disk, not in the queue
	AuditAfterPublish = "audit.after_publish" // in the queue
	AuditAfterReplay  = "audit.after_replay"  // in the queue, still in the spool
	AuditAfterSeal    = "audit.after_seal"    // in the trail, still in the queue
	AuditAfterAnchor  = "audit.after_anchor"
	AuditAfterPurge   = "audit.after_purge"
)

// AuditSteps lists the failpoints a kill test of the trail walks through.
var AuditSteps = []string{
	AuditBeforeAck, AuditAfterSpool, AuditAfterPublish, AuditAfterReplay, AuditAfterSeal, AuditAfterAnchor, AuditAfterPurge,
}

// Names of the steps of the life of a schedule.
const (
	ScheduleAfterCreate = "schedule.after_create"
	ScheduleBeforeFire  = "schedule.before_fire" // a timer has fired, nothing is done
	ScheduleAfterDecide = "schedule.after_decide"
	ScheduleAfterSubmit = "schedule.after_submit"
	ScheduleAfterArm    = "schedule.after_arm"
	ScheduleAfterAttend = "schedule.after_attend"
	ScheduleAfterEnded  = "schedule.after_ended" // of a job, the schedule is told
)

// ScheduleSteps lists the failpoints a kill test of schedules walks through.
var ScheduleSteps = []string{
	ScheduleAfterCreate, ScheduleBeforeFire, ScheduleAfterDecide, ScheduleAfterSubmit,
	ScheduleAfterArm, ScheduleAfterAttend, ScheduleAfterEnded,
}

// Names of the steps of a call of a pack by a pack, in the parent's worker.
const (
	CallAfterStarted = "call.after_started" // the child runs somewhere
	CallAfterEnded   = "call.after_ended"   // the parent does not know yet
	CallAfterCancel  = "call.after_cancel"  // the child is cancelled, the parent not yet
)

// CallSteps lists the failpoints a kill test of calls walks through.
var CallSteps = []string{CallAfterStarted, CallAfterEnded, CallAfterCancel}

// Steps lists the failpoints a kill test walks through.
var Steps = []string{
	SubmitBeforeKey, SubmitAfterKey, SubmitAfterPublish,
	ClaimBeforeStarted, ClaimAfterStarted, RunAfterHandler,
	FinishAfterTerminal, FinishAfterPublish, FinishAfterAck,
	RetryAfterEvent, RetryAfterSchedule, RetryAfterAck,
	MoverAfterPublish, MoverAfterPurge,
	CancelAfterEvent, CancelAfterRemove, CancelAfterRequest, ConsequenceAfterDead,
	SlotAfterTake, SlotAfterFree, HoldAfterPublish, HoldAfterAck,
	ReleaseAfterTake, ReleaseAfterQueue, ReleaseAfterPurge,
	HookAfterPublish, HookAfterSend, HookAfterSchedule, HookAfterAck, HookAfterMove, HookAfterPurge,
}

// The bugs that can be planted by name in HELMDECK_PLANT.
const (
	BugAckBeforeFinish   = "ack_before_finish"
	BugLoserAcks         = "loser_acks"
	BugNoFence           = "no_fence"
	BugConflictIsLost    = "conflict_is_lost"
	BugPurgeBeforeCancel = "purge_before_cancel"
	BugMoverDrops        = "mover_drops_on_taken"
	BugAcceptBeforeAck   = "accept_before_ack"
	BugRetryAckFirst     = "retry_ack_first"
)

// Bugs lists the bugs that can be planted.
var Bugs = []string{
	BugAckBeforeFinish, BugLoserAcks, BugNoFence, BugConflictIsLost,
	BugPurgeBeforeCancel, BugMoverDrops, BugAcceptBeforeAck, BugRetryAckFirst,
}
