package cluster

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// readmeCommands are the lines of the ```sh blocks of README.md, in order.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	var commands []string
	inside := false
	for line := range strings.Lines(readFile(t, mesh.Root(t), "README.md")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "" && !strings.HasPrefix(line, "#"):
			commands = append(commands, line)
		}
	}
	return commands
}

// TestReadmeCommands runs every command of the README in its order, as a new
// user would. `make run` goes on in the background; of the other make targets,
// which build or run this very test, make only says what it would do.
func TestReadmeCommands(t *testing.T) {
	commands := readmeCommands(t)
	if len(commands) < 10 || commands[0] != "make run" {
		t.Fatalf("the README begins with other commands than it should: %q", commands)
	}
	for _, command := range commands {
		switch {
		case command == "make run":
			startMakeRun(t)
		case command == "make help":
			mustShell(t, command)
		case strings.HasPrefix(command, "make "):
			mustShell(t, strings.Replace(command, "make ", "make --dry-run ", 1))
		default:
			out := mustShell(t, command)
			if strings.Contains(command, "consume greetings --from-beginning --follow=false") && out != "hello, leat\n" {
				t.Errorf("%s printed %q", command, out)
			}
		}
	}
}

func startMakeRun(t *testing.T) {
	t.Helper()
	var output lockedBuffer
	cmd := exec.Command("make", "run")
	cmd.Dir = mesh.Root(t)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		// What Ctrl-C does: the signal goes to the whole group.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case <-done:
		case <-time.After(60 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
			t.Errorf("make run did not end within a minute of Ctrl-C:\n%s", output.String())
		}
	})
	mesh.Eventually(t, 3*time.Minute, "make run says that it is ready", func() (bool, string) {
		return strings.Contains(output.String(), "ready") && strings.Contains(output.String(), "127.0.0.1:5328"), output.String()
	})
}

func mustShell(t *testing.T, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", command)
	cmd.Dir = mesh.Root(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, out, stderr.String())
	}
	return string(out)
}

// TestReadmeLinksExist follows the README's links to files.
func TestReadmeLinksExist(t *testing.T) {
	root := mesh.Root(t)
	for _, part := range strings.Split(readFile(t, root, "README.md"), "](")[1:] {
		link, _, _ := strings.Cut(part, ")")
		if strings.Contains(link, "://") {
			continue
		}
		if len(readFile(t, filepath.Join(root, link))) == 0 {
			t.Errorf("%s is empty", link)
		}
	}
}
