package packs

// Effect says what a second run of the same job would do to the world.
type Effect string

// The effects a pack may declare.
const (
	// EffectNone: running again is harmless. The default.
	EffectNone Effect = ""
	// EffectKeyed: the job id goes upstream as an idempotency key, so
	// running again is safe.
	EffectKeyed Effect = "keyed"
	// EffectOnce: a second run would repeat an effect. A marker is written
	// before the effect; a run that finds it ends with outcome_unknown.
	EffectOnce Effect = "once"
)
