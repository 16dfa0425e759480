package cluster

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// workload is what the test reads of a Deployment or StatefulSet.
type workload struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Name, Image  string
					Args         []string
					Env          []struct{ Name, Value string }
					VolumeMounts []struct{ Name, MountPath string }
				}
			}
		}
	}
}

func renderBase(t *testing.T) []workload {
	t.Helper()
	out, err := exec.Command(mesh.Tool(t, "kustomize"), "build", filepath.Join(mesh.Root(t), "deploy", "k8s", "base")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []workload
	for _, doc := range bytes.Split(out, []byte("\n---\n")) {
		var w workload
		if err := yaml.Unmarshal(doc, &w); err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

// TestKubernetesArguments renders the manifests and gives each container's
// arguments to the real binary, which checks them and ends.
func TestKubernetesArguments(t *testing.T) {
	all := renderBase(t)
	config := filepath.Join(t.TempDir(), "leat.conf")
	for _, w := range all {
		if w.Kind == "ConfigMap" {
			writeFile(t, config, w.Data["leat.conf"])
		}
	}
	seen := map[string]bool{}
	// What the pod's environment would fill in.
	fill := strings.NewReplacer("$(POD_IP)", "10.1.2.3", "$(POD_NAME)", "leat-broker-1", "$(POD_INDEX)", "1", "/etc/leat/leat.conf", config)
	for _, w := range all {
		for _, c := range w.Spec.Template.Spec.Containers {
			seen[c.Name] = true
			args := []string{"--check-config"}
			for _, a := range c.Args {
				args = append(args, fill.Replace(a))
			}
			if out, err := exec.Command(mesh.Bin(t, c.Name), args...).CombinedOutput(); err != nil {
				t.Errorf("%s refuses the arguments of %s %s: %v\n%s", c.Name, w.Kind, w.Metadata.Name, err, out)
			}
			if out, err := exec.Command(mesh.Bin(t, c.Name), append(args, "--no.such.key=1")...).CombinedOutput(); err == nil {
				t.Errorf("%s accepts anything, so that this test shows nothing:\n%s", c.Name, out)
			}
		}
	}
	for _, s := range []string{"broker", "controller", "coordinator", "gateway"} {
		if !seen[s] {
			t.Errorf("no workload runs the %s", s)
		}
	}
}
