package check

import (
	"strings"
	"testing"

	"github.com/canopyfs/canopy/loadtest/history"
)

// The tests write histories by hand: at takes the times of an operation, in groups 1.
type line = *history.Op

func at(call, ret int64, k history.Kind, a, b string, ino uint64) line {
	return &history.Op{Via: history.ByLibrary, Kind: k, Group: 1, A: a, B: b, Ino: ino, Call: call, Return: ret}
}

func (b book) refused(call, ret int64, k history.Kind, a, to, errno string) book {
	op := at(call, ret, k, a, to, 0)
	op.Outcome = errno
	return append(b, op)
}

// book is a history in the making.
type book []line

func (b book) add(call, ret int64, k history.Kind, a, to string, ino uint64) book {
	return append(b, at(call, ret, k, a, to, ino))
}

// with changes the last operation.
func (b book) with(change func(line)) book {
	change(b[len(b)-1])
	return b
}

func unknown(o line)               { o.Outcome, o.Hurried = history.Unknown, true }
func byMount(o line)               { o.Via = history.ByMount }
func alone(o line)                 { o.Group = 0 }
func links(n uint64) func(o line)  { return func(o line) { o.Links = n } }
func value(v string) func(o line)  { return func(o line) { o.Value = v } }
func shows(s ...string) func(line) { return func(o line) { o.Entries = entries(s...) } }

func entries(names ...string) (all []history.Entry) {
	for _, n := range names {
		name, ino, _ := strings.Cut(n, "=")
		e := history.Entry{Name: name}
		for _, c := range ino {
			e.Ino = 10*e.Ino + uint64(c-'0')
		}
		all = append(all, e)
	}
	return all
}

const (
	create, mkdir, stat, link, unlink, rmdir = history.Create, history.Mkdir, history.Stat, history.Link, history.Unlink, history.Rmdir
	rename, noreplace, exchange              = history.Rename, history.NoReplace, history.Exchange
)

// histories, each with the rule that it breaks; "" is one that breaks none.
func histories() map[string]struct {
	rule string
	ops  book
} {
	type row = struct {
		rule string
		ops  book
	}
	made := func() book { return book{}.add(0, 10, create, "d/a", "", 5) }
	dir := func() book { return book{}.add(0, 10, mkdir, "d/a", "", 5).add(0, 10, mkdir, "d/b", "", 6) }
	single := func(name string, call, ret int64, ino uint64) line {
		op := at(call, ret, create, name, "", ino)
		op.Group = 0
		return op
	}
	return map[string]row{
		"nothing": {"", nil},

		// One name.
		"seen as it was made":             {"", made().add(20, 30, stat, "d/a", "", 5).with(links(1))},
		"stale: absent after it was made": {RuleNames, made().refused(20, 30, stat, "d/a", "", "ENOENT")},
		"stale: there after it was removed": {RuleNames, made().add(20, 30, unlink, "d/a", "", 0).
			add(40, 50, stat, "d/a", "", 5)},
		"either while it is removed": {"", made().add(20, 60, unlink, "d/a", "", 0).
			add(25, 30, stat, "d/a", "", 5).refused(35, 40, stat, "d/a", "", "ENOENT")},
		"there again while it is removed": {RuleNames, made().add(20, 60, unlink, "d/a", "", 0).
			refused(25, 30, stat, "d/a", "", "ENOENT").add(35, 40, stat, "d/a", "", 5)},
		"another inode":                    {RuleNames, made().add(20, 30, stat, "d/a", "", 6)},
		"made twice":                       {RuleNames, made().add(20, 30, create, "d/a", "", 6)},
		"made twice at once":               {RuleNames, book{}.add(0, 30, create, "d/a", "", 5).add(0, 30, create, "d/a", "", 6)},
		"one of two is refused":            {"", book{}.add(0, 30, create, "d/a", "", 5).refused(0, 30, create, "d/a", "", "EEXIST")},
		"refused without a reason":         {RuleNames, book{}.refused(0, 30, create, "d/a", "", "EEXIST")},
		"the same inode for two":           {RuleInode, book{}.add(0, 10, create, "d/a", "", 5).add(20, 30, unlink, "d/a", "", 0).add(40, 50, create, "d/a", "", 5)},
		"removed twice":                    {RuleNames, made().add(20, 30, unlink, "d/a", "", 0).add(40, 50, unlink, "d/a", "", 0)},
		"removed twice, but made between":  {"", made().add(20, 30, unlink, "d/a", "", 0).add(20, 40, create, "d/a", "", 6).add(50, 60, unlink, "d/a", "", 0)},
		"a refusal that there is not":      {RuleRefusal, made().refused(20, 30, unlink, "d/a", "", "EXDEV")},
		"a number that nobody had seen":    {"", book{}.add(0, 10, mkdir, "d/a", "", 0).add(20, 30, stat, "d/a", "", 7).add(40, 50, stat, "d/a", "", 7)},
		"and that changes":                 {RuleNames, book{}.add(0, 10, mkdir, "d/a", "", 0).add(20, 30, stat, "d/a", "", 7).add(40, 50, stat, "d/a", "", 8)},
		"and that follows a rename":        {"", book{}.add(0, 10, mkdir, "d/a", "", 0).add(20, 30, rename, "d/a", "e/b", 0).add(40, 50, stat, "e/b", "", 7)},
		"and that does not":                {RuleNames, book{}.add(0, 10, mkdir, "d/a", "", 0).add(12, 15, stat, "d/a", "", 7).add(20, 30, rename, "d/a", "e/b", 0).add(40, 50, stat, "e/b", "", 8)},
		"a mount's ESTALE says nothing":    {"", made().refused(20, 30, stat, "d/a", "", "ESTALE").with(byMount)},
		"a library's ESTALE is a mistake":  {RuleRefusal, made().refused(20, 30, stat, "d/a", "", "ESTALE")},
		"EIO is a mistake":                 {RuleRefusal, made().add(20, 30, stat, "d/a", "", 0).with(unknown).with(func(o line) { o.Hurried, o.Said = false, "input/output error" })},
		"a time-out of who waited is none": {"", made().add(20, 30, unlink, "d/a", "", 0).with(unknown).with(func(o line) { o.Hurried = false })},

		// Unknown outcomes.
		"unknown, and not done":         {"", made().add(20, 30, unlink, "d/a", "", 0).with(unknown).add(40, 50, stat, "d/a", "", 5)},
		"unknown, and done":             {"", made().add(20, 30, unlink, "d/a", "", 0).with(unknown).refused(40, 50, stat, "d/a", "", "ENOENT")},
		"unknown, and done later":       {"", made().add(20, 30, unlink, "d/a", "", 0).with(unknown).add(40, 50, stat, "d/a", "", 5).refused(60, 70, stat, "d/a", "", "ENOENT")},
		"unknown, and done before":      {RuleNames, made().refused(12, 15, stat, "d/a", "", "ENOENT").add(20, 30, unlink, "d/a", "", 0).with(unknown)},
		"unknown, and done twice":       {RuleNames, made().add(20, 30, unlink, "d/a", "", 0).with(unknown).refused(40, 50, stat, "d/a", "", "ENOENT").add(60, 70, create, "d/a", "", 6).refused(80, 90, stat, "d/a", "", "ENOENT")},
		"two unknown, one undoes one":   {"", made().add(20, 30, unlink, "d/a", "", 0).with(unknown).add(20, 30, create, "d/a", "", 0).with(unknown).refused(40, 50, stat, "d/a", "", "ENOENT").add(60, 70, stat, "d/a", "", 9)},
		"an unknown rename goes half":   {RuleNames, made().add(20, 30, rename, "d/a", "e/b", 0).with(unknown).add(40, 50, stat, "e/b", "", 5).add(60, 70, stat, "d/a", "", 5)},
		"an unknown rename loses both":  {RuleNames, made().add(20, 30, rename, "d/a", "e/b", 0).with(unknown).refused(40, 50, stat, "d/a", "", "ENOENT").refused(60, 70, stat, "e/b", "", "ENOENT")},
		"an unknown read says nothing":  {"", made().add(20, 30, stat, "d/a", "", 9).with(unknown)},
		"acknowledged and lost":         {RuleNames, made().add(90, 95, history.Recount, "d", "", 0).with(alone)},
		"acknowledged and counted":      {"", made().add(90, 95, history.Recount, "d", "", 0).with(alone).with(shows("a=5"))},
		"counted as another":            {RuleNames, made().add(90, 95, history.Recount, "d", "", 0).with(alone).with(shows("a=6"))},
		"removed and back in the count": {RuleNames, made().add(20, 30, unlink, "d/a", "", 0).add(90, 95, history.Recount, "d", "", 0).with(alone).with(shows("a=5"))},

		// Renames.
		"renamed":                         {"", made().add(20, 30, rename, "d/a", "e/b", 0).add(40, 50, stat, "e/b", "", 5).refused(60, 70, stat, "d/a", "", "ENOENT")},
		"in neither place":                {RuleNames, made().add(20, 80, rename, "d/a", "e/b", 0).refused(30, 40, stat, "d/a", "", "ENOENT").refused(50, 60, stat, "e/b", "", "ENOENT")},
		"in neither place, as can be":     {"", made().add(20, 80, rename, "d/a", "e/b", 0).refused(30, 40, stat, "e/b", "", "ENOENT").refused(50, 60, stat, "d/a", "", "ENOENT")},
		"in both places":                  {RuleNames, made().add(20, 80, rename, "d/a", "e/b", 0).add(30, 40, stat, "e/b", "", 5).add(50, 60, stat, "d/a", "", 5)},
		"a target that is never absent":   {RuleNames, dir().add(20, 80, rename, "d/a", "d/b", 0).refused(30, 40, stat, "d/b", "", "ENOENT")},
		"without replacing":               {"", dir().refused(20, 30, noreplace, "d/a", "d/b", "EEXIST")},
		"replaced all the same":           {RuleNames, dir().add(20, 30, noreplace, "d/a", "d/b", 0)},
		"exchanged":                       {"", dir().add(20, 30, exchange, "d/a", "d/b", 0).add(40, 50, stat, "d/a", "", 6).add(40, 50, stat, "d/b", "", 5)},
		"exchanged by half":               {RuleNames, dir().add(20, 30, exchange, "d/a", "d/b", 0).add(40, 50, stat, "d/a", "", 6).add(40, 50, stat, "d/b", "", 6)},
		"two renames of one":              {RuleNames, made().add(20, 30, rename, "d/a", "d/b", 0).add(20, 30, rename, "d/a", "d/c", 0)},
		"a mount that finds one inode":    {"", made().add(20, 60, rename, "d/a", "d/b", 0).add(20, 60, rename, "d/a", "d/b", 0).with(byMount).add(70, 80, stat, "d/b", "", 5)},
		"a mount that cannot have":        {RuleNames, made().add(20, 60, rename, "d/a", "d/b", 0).with(byMount).refused(70, 80, stat, "d/b", "", "ENOENT")},
		"over a directory with a file":    {RuleNames, dir().add(20, 30, history.Enter, "", "", 6).add(40, 50, rename, "d/a", "d/b", 0)},
		"which is refused":                {"", dir().add(20, 30, history.Enter, "", "", 6).refused(40, 50, rename, "d/a", "d/b", "ENOTEMPTY")},
		"an empty one refuses":            {RuleNames, dir().refused(40, 50, rename, "d/a", "d/b", "ENOTEMPTY")},
		"a file moves with its directory": {"", dir().add(20, 30, history.Enter, "", "", 5).add(40, 50, rename, "d/a", "d/b", 0).refused(60, 70, rmdir, "d/b", "", "ENOTEMPTY")},
		"a file in a removed directory":   {RuleNames, dir().add(20, 30, rmdir, "d/a", "", 0).add(40, 50, history.Enter, "", "", 5)},
		"a mount takes it for removed":    {"", dir().add(20, 30, history.Enter, "", "", 5).refused(40, 50, history.Leave, "", "", "ENOENT").with(byMount).with(func(o line) { o.Ino = 5 })},
		"a library must not":              {RuleNames, dir().add(20, 30, history.Enter, "", "", 5).refused(40, 50, history.Leave, "", "", "ENOENT").with(func(o line) { o.Ino = 5 })},
		"a directory removed with a file": {RuleNames, dir().add(20, 30, history.Enter, "", "", 5).add(40, 50, rmdir, "d/a", "", 0)},

		// Links.
		"linked":                     {"", made().add(20, 30, link, "", "d/b", 5).add(40, 50, stat, "d/b", "", 5).with(links(2))},
		"linked, and not counted":    {RuleNames, made().add(20, 30, link, "", "d/b", 5).add(40, 50, stat, "d/b", "", 5).with(links(1))},
		"a link of what is gone":     {RuleNames, made().add(20, 30, unlink, "d/a", "", 0).add(40, 50, link, "", "d/b", 5)},
		"counted while it is linked": {"", made().add(20, 60, link, "", "d/b", 5).add(30, 40, history.Links, "", "", 5).with(links(2))},
		"and then not any more":      {RuleNames, made().add(20, 80, link, "", "d/b", 5).add(30, 40, history.Links, "", "", 5).with(links(2)).add(50, 60, history.Links, "", "", 5).with(links(1))},
		"the last link goes":         {"", made().add(20, 30, unlink, "d/a", "", 0).refused(40, 50, history.Links, "", "", "ESTALE").with(func(o line) { o.Ino = 5 })},
		"an inode lost with a link":  {RuleNames, made().refused(40, 50, history.Links, "", "", "ESTALE").with(func(o line) { o.Ino = 5 })},

		// Registers.
		"a register": {"", book{}.add(0, 10, history.Set, "d#x", "", 0).with(value("1")).with(alone).
			add(20, 30, history.Get, "d#x", "", 0).with(value("1")).with(alone)},
		"a stale value": {RuleRegister, book{}.add(0, 10, history.Set, "d#x", "", 0).with(value("1")).with(alone).
			add(20, 30, history.Set, "d#x", "", 0).with(value("2")).with(alone).add(40, 50, history.Get, "d#x", "", 0).with(value("1")).with(alone)},
		"a lost update": {RuleRegister, book{}.add(0, 10, history.Set, "d#x", "", 0).with(value("1")).with(alone).
			refused(20, 30, history.Get, "d#x", "", "ENODATA").with(alone)},
		"a value that goes back": {RuleRegister, book{}.add(0, 10, history.Set, "d#x", "", 0).with(value("1")).with(alone).
			add(20, 80, history.Set, "d#x", "", 0).with(value("2")).with(alone).
			add(30, 40, history.Get, "d#x", "", 0).with(value("2")).with(alone).add(50, 60, history.Get, "d#x", "", 0).with(value("1")).with(alone)},
		"an unknown value comes later": {"", book{}.add(0, 10, history.Set, "d#x", "", 0).with(value("1")).with(alone).
			add(20, 30, history.Set, "d#x", "", 0).with(value("2")).with(alone).with(unknown).
			add(40, 50, history.Get, "d#x", "", 0).with(value("1")).with(alone).add(60, 70, history.Get, "d#x", "", 0).with(value("2")).with(alone)},
		"a value that nobody set": {RuleRegister, book{}.add(40, 50, history.Get, "d#x", "", 0).with(value("7")).with(alone)},

		// Names that are made once, and listings.
		"listed":                      {"", book{single("d/s.1", 0, 10, 5)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5", "g1.1=9"))},
		"listed twice":                {RuleTwice, book{single("d/s.1", 0, 10, 5)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5", "g1.1=9", "s.1=5"))},
		"missed":                      {RuleMissing, book{single("d/s.1", 0, 10, 5)}.add(20, 30, history.List, "d", "", 0).with(alone)},
		"not yet there":               {"", book{single("d/s.1", 0, 25, 5)}.add(20, 30, history.List, "d", "", 0).with(alone)},
		"shown before it is made":     {RuleSurplus, book{single("d/s.1", 40, 50, 5)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5"))},
		"shown after it went":         {RuleSurplus, book{single("d/s.1", 0, 5, 5)}.add(6, 8, unlink, "d/s.1", "", 0).with(alone).add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5"))},
		"unknown removal, shown":      {"", book{single("d/s.1", 0, 5, 5)}.add(6, 8, unlink, "d/s.1", "", 0).with(alone).with(unknown).add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5"))},
		"unknown removal, not shown":  {"", book{single("d/s.1", 0, 5, 5)}.add(6, 8, unlink, "d/s.1", "", 0).with(alone).with(unknown).add(20, 30, history.List, "d", "", 0).with(alone)},
		"nobody made it":              {RuleSurplus, book{}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5"))},
		"shown as another":            {RuleSurplus, book{single("d/s.1", 0, 10, 5)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=6"))},
		"renamed, shown as it was":    {RuleSurplus, book{single("d/s.1", 0, 5, 5)}.add(6, 8, rename, "d/s.1", "d/s.1r", 0).with(alone).add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5", "s.1r=5"))},
		"renamed, and in neither":     {RuleMissing, book{single("d/s.1", 0, 5, 5)}.add(6, 8, rename, "d/s.1", "d/s.1r", 0).with(alone).add(20, 30, history.List, "d", "", 0).with(alone)},
		"the second without first":    {RuleOrder, book{single("d/s.1", 21, 22, 5), single("d/s.2", 23, 24, 6)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.2=6"))},
		"the first without second":    {"", book{single("d/s.1", 21, 22, 5), single("d/s.2", 23, 24, 6)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.1=5"))},
		"the second, first removed":   {"", book{single("d/s.1", 21, 22, 5), single("d/s.2", 23, 24, 6)}.add(25, 26, unlink, "d/s.1", "", 0).with(alone).add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.2=6"))},
		"two at once, in any order":   {"", book{single("d/s.1", 21, 23, 5), single("d/s.2", 22, 24, 6)}.add(20, 30, history.List, "d", "", 0).with(alone).with(shows("s.2=6"))},
		"what is done once fails":     {RuleOnce, book{}.refused(20, 30, create, "d/s.1", "", "EEXIST").with(alone)},
		"a count without a name":      {RuleMissing, book{single("d/s.1", 0, 10, 5)}.add(90, 95, history.Recount, "d", "", 0).with(alone)},
		"a name of another directory": {RuleSurplus, book{single("d/s.1", 0, 10, 5)}.add(20, 30, history.List, "e", "", 0).with(alone).with(shows("s.1=5"))},

		// Logs.
		"a log":                    {"", log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "1.2", "2.1"))},
		"a lost record":            {RuleLost, log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "2.1"))},
		"a record twice":           {RuleRepeated, log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "1.2", "2.1", "1.2"))},
		"a torn record":            {RuleTorn, log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "!7 bytes", "1.2", "2.1"))},
		"a hole":                   {RuleTorn, log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "~7", "1.2", "2.1"))},
		"records in a wrong order": {RuleAppendSeen, log(5).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.2", "1.1", "2.1"))},
		"an unknown record's hole": {"", log(5).with(unknown).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("1.1", "~7", "1.2"))},
		"an unknown record":        {"", log(5).with(unknown).add(90, 95, history.Appended, "d/log", "", 0).with(alone).with(shows("2.1", "1.1", "1.2"))},
	}
}

// log is two records of a client and, at the same time, one of another.
func log(start int64) book {
	rec := func(b book, call, ret int64, id string) book {
		return b.add(call, ret, history.Append, "d/log", "", 0).with(value(id)).with(alone)
	}
	return rec(rec(rec(nil, start, start+5, "1.1"), start+10, start+15, "1.2"), start, start+20, "2.1")
}

// TestHistories: each kind of violation is found, as what it is, and what can be is
// found in order.
func TestHistories(t *testing.T) {
	for name, row := range histories() {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), &history.History{Ops: row.ops}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case row.rule == "" && !r.OK():
				t.Errorf("a history that can be is refused: %v", r.Violations)
			case row.rule != "" && (len(r.Rules) != 1 || r.Rules[row.rule] == 0):
				t.Errorf("found %v, want %s alone: %v", r.Rules, row.rule, r.Violations)
			}
		})
	}
}

// TestReport: what was found is told with what led to it.
func TestReport(t *testing.T) {
	row := histories()["in neither place"]
	r, err := Run(t.Context(), &history.History{Ops: row.ops}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"names of group 1: no order of its 4 operations", "create d/a inode 5 -> {d/a=5}", "stat e/b: ENOENT"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
	if r.Err() == nil {
		t.Error("no error")
	}
}
