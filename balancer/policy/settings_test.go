package policy

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	s := Default()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	for want, change := range map[string]func(*Settings){
		"felt 0: want a part":               func(s *Settings) { s.Felt = 0 },
		"ceiling 1.5: want a part":          func(s *Settings) { s.Ceiling = 1.5 },
		"hold 0: want at least 1":           func(s *Settings) { s.Hold = 0 },
		"residence -1: want at least 0":     func(s *Settings) { s.Residence = -time.Second },
		"max-parts 1: want at least 2":      func(s *Settings) { s.MaxParts = 1 },
		"merge-share 0.4: want at most":     func(s *Settings) { s.MergeShare = 0.4 },
		"gain-over-cost 0.5: want at least": func(s *Settings) { s.GainOverCost = 0.5 },
	} {
		s := Default()
		change(&s)
		if err := s.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestEverySettingIsDocumented: DESIGN.md's table has a row for each.
func TestEverySettingIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range defaults() {
		if !strings.Contains(string(doc), "| "+name+" | "+value+" |") {
			t.Errorf("DESIGN.md lacks the row | %s | %s |", name, value)
		}
	}
}

// defaults returns the settings' names and default values as DESIGN.md shows them.
func defaults() map[string]string {
	s := Default()
	v := reflect.ValueOf(s)
	all := map[string]string{}
	for i := range v.NumField() {
		all[v.Type().Field(i).Name] = fmt.Sprint(v.Field(i).Interface())
	}
	return all
}
