package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/leat-io/leat/"

// modules are the modules of the workspace, each below those it may require.
var modules = []string{"gen", "libs", "services", "cmd", "tests", "bench"}

// pkg is what `go list` tells of a package.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func listPackages(t *testing.T) []pkg {
	t.Helper()
	var all []pkg
	for _, m := range modules {
		cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,GoFiles,Imports,Deps", "./...")
		cmd.Dir = filepath.Join(root(t), m)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list in %s: %v", m, err)
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p pkg
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
	}
	if len(all) < 20 {
		t.Fatalf("go list found only %d packages: the test looks at the wrong place", len(all))
	}
	return all
}

// importRule forbids packages below from to depend on packages below to.
type importRule struct {
	from, to string
	// direct limits the rule to import lines, for packages of the standard
	// library that everything reaches somehow.
	direct bool
	why    string
}

func importRules() []importRule {
	var rules []importRule
	add := func(why string, direct bool, from []string, to ...string) {
		for _, f := range from {
			for _, t := range to {
				rules = append(rules, importRule{from: f, to: t, direct: direct, why: why})
			}
		}
	}
	add("the storage libraries and the plumbing know neither protos nor gRPC", false,
		[]string{
			module + "libs/vfs", module + "libs/record", module + "libs/commitlog",
			module + "libs/lifecycle", module + "libs/config", module + "libs/topicid", module + "libs/core",
		},
		module+"gen", "google.golang.org/grpc", "google.golang.org/protobuf", "go.etcd.io/etcd")
	add("the cores are pure: no I/O", true,
		[]string{module + "libs/core"}, "os", "net", "syscall", "io/fs", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand")
	add("imports go one way", false, []string{module + "gen"},
		module+"libs", module+"services", module+"cmd", module+"tests", module+"bench")
	add("imports go one way", false, []string{module + "libs"},
		module+"services", module+"cmd", module+"tests", module+"bench")
	add("imports go one way", false, []string{module + "services"},
		module+"cmd", module+"tests", module+"bench")
	names := []string{"broker", "controller", "coordinator", "gateway"}
	for _, a := range names {
		for _, b := range names {
			if a != b {
				add("services meet only over gRPC", false, []string{module + "services/" + a}, module+"services/"+b)
			}
		}
	}
	add("what is persisted is not what travels", true,
		[]string{module + "services/broker", module + "services/gateway", module + "libs/client", module + "libs/rpc", module + "cmd"},
		module+"gen/go/leat/storage")
	return rules
}

func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
}

func (r importRule) breaches(p pkg) []string {
	if !below(p.ImportPath, r.from) {
		return nil
	}
	deps := p.Deps
	if r.direct {
		deps = p.Imports
	}
	var bad []string
	for _, d := range deps {
		match := below(d, r.to)
		if r.direct && !strings.Contains(r.to, ".") {
			match = d == r.to
		}
		if match {
			bad = append(bad, d)
		}
	}
	return bad
}

func TestImportRules(t *testing.T) {
	packages := listPackages(t)
	for _, r := range importRules() {
		for _, p := range packages {
			if bad := r.breaches(p); len(bad) > 0 {
				t.Errorf("%s depends on %s: %s", p.ImportPath, strings.Join(bad, ", "), r.why)
			}
		}
	}
}

func TestImportRulesCatchBreaches(t *testing.T) {
	breaches := []pkg{
		{ImportPath: module + "libs/commitlog", Deps: []string{"google.golang.org/grpc/codes"}},
		{ImportPath: module + "libs/core/partition", Imports: []string{"os"}},
		{ImportPath: module + "libs/client", Deps: []string{module + "services/broker"}},
		{ImportPath: module + "services/gateway/internal/handler", Deps: []string{module + "services/broker"}},
	}
	for _, p := range breaches {
		caught := false
		for _, r := range importRules() {
			caught = caught || len(r.breaches(p)) > 0
		}
		if !caught {
			t.Errorf("no rule catches %s", p.ImportPath)
		}
	}
}

// TestCoresArePure looks for what the import rules cannot see: goroutines,
// channels of time and the wall clock.
func TestCoresArePure(t *testing.T) {
	forbidden := map[string]bool{
		"Now": true, "Since": true, "Until": true, "Sleep": true,
		"After": true, "AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true,
	}
	seen := 0
	for _, p := range listPackages(t) {
		if !below(p.ImportPath, module+"libs/core") {
			continue
		}
		seen++
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s starts a goroutine: a core decides, its loop acts", fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && forbidden[n.Sel.Name] {
						t.Errorf("%s uses time.%s: a core is given the time", fset.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if seen == 0 {
		t.Error("found no core package")
	}
}

func TestEveryPackageHasDocGo(t *testing.T) {
	for _, p := range listPackages(t) {
		if below(p.ImportPath, module+"gen/go") || len(p.GoFiles) == 0 {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, "doc.go"), nil, parser.ParseComments)
		switch {
		case errors.Is(err, os.ErrNotExist):
			t.Errorf("%s has no doc.go that says what it is and what it asks of its callers", p.ImportPath)
		case err != nil:
			t.Error(err)
		case len(strings.TrimSpace(file.Doc.Text())) < 40:
			t.Errorf("%s/doc.go says next to nothing", p.ImportPath)
		}
	}
}

func TestModulesBuildAlone(t *testing.T) {
	for _, m := range modules {
		cmd := exec.Command("go", "build", "./...")
		cmd.Dir = filepath.Join(root(t), m)
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("GOWORK=off go build ./... in %s: %v\n%s", m, err, out)
		}
	}
}

// TestModulesAreAcyclic reads each go.mod: a module requires only modules that
// stand before it in the list.
func TestModulesAreAcyclic(t *testing.T) {
	for i, m := range modules {
		text, err := os.ReadFile(filepath.Join(root(t), m, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for _, later := range modules[i:] {
			if strings.Contains(string(text), module+later+" v") {
				t.Errorf("module %s requires %s", m, later)
			}
		}
	}
}
