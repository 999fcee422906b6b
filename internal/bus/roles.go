package bus

import (
	"fmt"
	"regexp"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Role is a user of the bus, with the subjects it may use.
type Role string

// The roles. Only the administrator makes or changes streams.
const (
	RoleAdmin     Role = "admin"
	RoleAPI       Role = "api"
	RoleWorker    Role = "worker"
	RoleScheduler Role = "scheduler"
)

// Roles lists all roles.
var Roles = []Role{RoleAdmin, RoleAPI, RoleWorker, RoleScheduler}

// Grant is what a role may do beyond its own inbox.
type Grant struct{ Publish, Subscribe []string }

// access says what a role does with a stream; the letters are
// r read, w publish, p pull and acknowledge, d purge, k watch a bucket.
type access struct {
	stream   string
	subjects []string // published to with w, without the prefix
	rights   string
}

// GrantOf returns the subjects a role may publish and subscribe to in an
// installation, for the embedded server and for configuration files of others.
func GrantOf(prefix string, role Role) Grant {
	n := names{prefix}
	if role == RoleAdmin {
		return Grant{Publish: []string{">"}, Subscribe: []string{">"}}
	}
	g := Grant{
		Publish:   []string{apiPrefix + "INFO", "_INBOX." + prefix + ".>"},
		Subscribe: []string{inboxPrefix(prefix, role) + ".>"},
	}
	for _, a := range accessOf(n, role) {
		g.add(n, a)
	}
	for _, core := range []string{"ctl.*.cancel", HeldPrefix + ">", "hb.>", "req.>"} {
		g.Publish = append(g.Publish, prefix+"."+core)
		g.Subscribe = append(g.Subscribe, prefix+"."+core)
	}
	// Nobody publishes to live.>: the server alone republishes there.
	g.Subscribe = append(g.Subscribe, prefix+".live.>")
	switch role {
	case RoleAPI:
		g.Publish = append(g.Publish, prefix+".ctl.*.drain")
		g.Subscribe = append(g.Subscribe, prefix+"."+HeldPrefix+">")
		// History is answered to outside programs, whose inboxes are their own.
		g.Publish = append(g.Publish, "_INBOX.>")
		for _, p := range packs.Pools {
			g.Publish = append(g.Publish, apiPrefix+"CONSUMER.PAUSE."+n.stream(JobsStream(p))+".>")
		}
	case RoleWorker:
		g.Subscribe = append(g.Subscribe, prefix+".ctl.*.drain")
	case RoleScheduler:
		g.Publish = append(g.Publish, apiPrefix+"CONSUMER.CREATE."+n.stream(StreamLeases)+".>")
	}
	return g
}

func (g *Grant) add(n names, a access) {
	s := a.stream
	g.Publish = append(g.Publish, apiPrefix+"STREAM.INFO."+s)
	for _, right := range a.rights {
		switch right {
		case 'r':
			g.Publish = append(g.Publish, apiPrefix+"STREAM.MSG.GET."+s, apiPrefix+"DIRECT.GET."+s, apiPrefix+"DIRECT.GET."+s+".>")
		case 'w':
			g.Publish = append(g.Publish, a.subjects...)
		case 'p':
			// Both forms of the acknowledgement's subject.
			g.Publish = append(g.Publish, apiPrefix+"CONSUMER.MSG.NEXT."+s+".>", apiPrefix+"CONSUMER.INFO."+s+".>",
				"$JS.ACK."+s+".>", "$JS.ACK.*.*."+s+".>")
		case 'd':
			g.Publish = append(g.Publish, apiPrefix+"STREAM.PURGE."+s)
		case 'k':
			g.Publish = append(g.Publish, apiPrefix+"CONSUMER.CREATE."+s+".>", apiPrefix+"CONSUMER.DELETE."+s+".>",
				apiPrefix+"CONSUMER.INFO."+s+".>", "$JS.FC."+s+".>")
		}
	}
}

func accessOf(n names, role Role) []access {
	var all []access
	stream := func(rights, name string, subjects ...string) {
		for i, s := range subjects {
			subjects[i] = n.prefix + "." + s
		}
		all = append(all, access{n.stream(name), subjects, rights})
	}
	bucket := func(rights string, names ...string) {
		for _, b := range names {
			all = append(all, access{n.kvStream(b), []string{"$KV." + n.bucket(b) + ".>"}, rights})
		}
	}
	if role == RoleScheduler {
		stream("rwpd", StreamLeases, "lease.req.>")
		stream("w", StreamAudit, "audit.>")
		stream("w", StreamTrailIn, "trailin.>")
		bucket("rwk", BucketLeases, BucketSessions)
		bucket("rk", BucketPacks, BucketTenants)
		return all
	}
	// API replicas and workers both move, release and draw consequences.
	for _, p := range packs.Pools {
		stream("rwpd", JobsStream(p), "job."+string(p)+".>")
		stream("rwd", HoldStream(p), "hold."+string(p)+".>")
	}
	stream("rwpd", StreamEvents, "evt.>")
	stream("rwpd", StreamSchedule, "sched.>")
	stream("rwd", StreamDead, "dlq.>")
	stream("rw", StreamAudit, "audit.>")
	bucket("rwk", BucketLeases, BucketLimits, BucketIdem, BucketSessions, BucketPacks, BucketArtifacts)
	b := n.bucket(BucketArtifacts)
	all = append(all, access{n.objStream(BucketArtifacts), []string{"$O." + b + ".>"}, "rwd"})
	if role == RoleWorker {
		stream("rw", StreamProgress, "prog.>")
		stream("rwd", StreamLeases, "lease.req.>")
		stream("w", StreamTrailIn, "trailin.>")
		bucket("rk", BucketVault, BucketTenants)
		return all
	}
	stream("rd", StreamProgress) // results that expire take their log along
	stream("rd", StreamLeases)
	stream("rwpd", StreamHooks, "hook.>")
	stream("rwd", StreamHookLog, "hooklog.>")
	stream("rw", StreamTrail, "trail.>")
	stream("rwd", StreamTrailIn, "trailin.>")
	bucket("rwk", BucketTrail)
	bucket("rwk", BucketTokens, BucketVault, BucketSchedules, BucketTenants, BucketPools, BucketExpiries, BucketWebhooks)
	return all
}

// inboxPrefix keeps the roles' replies apart: no role can listen to another's.
func inboxPrefix(prefix string, role Role) string {
	return fmt.Sprintf("_INBOX.%s.%s", prefix, role)
}

func (s *Server) users() []*server.User {
	var users []*server.User
	for _, r := range Roles {
		g := GrantOf(s.cfg.Prefix, r)
		users = append(users, &server.User{
			Username: string(r), Password: s.cfg.Passwords[r],
			Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: g.Publish},
				Subscribe: &server.SubjectPermission{Allow: g.Subscribe},
			},
		})
	}
	return users
}

var deniedPublish = regexp.MustCompile(`(?i)permissions violation for publish to "([^"]+)"`)

// deniedSubject reads the subject out of a permissions violation, which the
// server reports apart from the message it refused.
func deniedSubject(err error) (string, bool) {
	if err == nil {
		return "", false
	}
	m := deniedPublish.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	return m[1], true
}
