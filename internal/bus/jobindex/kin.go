package jobindex

import "github.com/helmdeck/helmdeck/pkg/jobs"

// parentHeader names the parent in the headers of an event; see events.ExtParentID.
const parentHeader = "ce-parentid"

// relate notes the parent of e; x.mu is held.
func (x *Index) relate(e *entry, parent string) {
	if parent == "" || e.parent == parent {
		return
	}
	e.parent = parent
	family := x.kin[parent]
	if family == nil {
		family = map[string]*entry{}
		x.kin[parent] = family
	}
	family[e.id] = e
}

// forget drops e; x.mu is held, and ordered no longer sorted.
func (x *Index) forget(e *entry) {
	delete(x.byID, e.id)
	e.state = ""
	x.settle(e)
	if family := x.kin[e.parent]; family != nil {
		delete(family, e.id)
		if len(family) == 0 {
			delete(x.kin, e.parent)
		}
	}
}

// Children implements jobs.Index.
func (x *Index) Children(k jobs.Key) map[jobs.State]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out map[jobs.State]int
	for _, e := range x.kin[k.ID] {
		if e.tenant != k.Tenant || e.owner != k.Owner || e.state == expired {
			continue // anybody may name any parent
		}
		if out == nil {
			out = map[jobs.State]int{}
		}
		out[e.state]++
	}
	return out
}

// Orphans returns up to limit called jobs that have not ended while their
// parent has, is being cancelled, or is not known here.
func (x *Index) Orphans(limit int) []jobs.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []jobs.Key
	for id, family := range x.kin {
		if parent := x.byID[id]; parent != nil && !parent.ending() {
			continue
		}
		for _, e := range family {
			if len(out) == limit {
				return out
			}
			if e.over() {
				continue
			}
			if j, ok := e.record(); ok && j.Call != nil && !j.Call.Shared && !j.CancelRequested {
				out = append(out, jobs.Key{Tenant: e.tenant, Owner: e.owner, ID: e.id})
			}
		}
	}
	return out
}

// ending reports whether a job has ended or is being cancelled; x.mu is held.
func (e *entry) ending() bool {
	if e.over() {
		return true
	}
	j, ok := e.record()
	return ok && j.CancelRequested
}
