package mesh

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Services names the processes of a mesh that was started with Processes, such
// as "broker-1", sorted; the supervisor is not among them.
func (m *Mesh) Services() []string {
	m.t.Helper()
	var names []string
	for name := range m.pids() {
		if name != "dev" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Signal sends a signal to one process, such as SIGSTOP to "broker-1".
func (m *Mesh) Signal(service string, sig syscall.Signal) {
	m.t.Helper()
	pid, ok := m.pids()[service]
	if !ok {
		m.t.Fatalf("no pid file for %s", service)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		m.t.Fatalf("send %v to %s (pid %d): %v", sig, service, pid, err)
	}
}

// GatewayN is the address of the n-th gateway, from 1.
func (m *Mesh) GatewayN(n int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.PortBase+n-1))
}

// OpsAddr is the address of the operations HTTP of a service, such as "broker-1".
func (m *Mesh) OpsAddr(service string) string {
	m.t.Helper()
	kind, number, _ := strings.Cut(service, "-")
	block, known := map[string]int{"gateway": 120, "controller": 140, "coordinator": 160, "broker": 180}[kind]
	n, err := strconv.Atoi(number)
	if !known || err != nil {
		m.t.Fatalf("%s has no operations HTTP", service)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.PortBase+block+n-1))
}

// Logs returns the text of every process's log by its name.
func (m *Mesh) Logs() map[string]string {
	m.t.Helper()
	files, err := filepath.Glob(filepath.Join(m.Data, "log", "*.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	logs := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			m.t.Fatal(err)
		}
		logs[strings.TrimSuffix(filepath.Base(f), ".log")] = string(text)
	}
	return logs
}
