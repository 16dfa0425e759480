package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leat-io/leat/cmd/leat/internal/dev"
	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

func newDevCommand(a *app) *cobra.Command {
	o := dev.Options{Out: a.Out, Interrupt: a.interrupt, Leat: commandName()}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a whole mesh on this machine", Args: cobra.ArbitraryArgs,
		Long: devLong + "\n\n" + exitCodes,
		Example: `  leat dev
  leat dev --data D --brokers 5
  leat dev --data D --processes --set broker.log.level=debug --set broker.2.rack=b
  leat dev restart broker-1 --data D`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) > 0 {
				return unknownCommand(cmd, given[0])
			}
			return dev.Run(cmd.Context(), o)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Data, "data", "", "folder of the mesh's state (default: a fresh temporary one, which is printed)")
	fs.IntVar(&o.Brokers, "brokers", 3, "number of brokers")
	fs.IntVar(&o.Controllers, "controllers", 1, "number of controllers")
	fs.IntVar(&o.Coordinators, "coordinators", 1, "number of coordinators")
	fs.IntVar(&o.Gateways, "gateways", 1, "number of gateways")
	fs.IntVar(&o.Etcds, "etcds", 1, "number of etcd members; fixed for a data folder")
	fs.BoolVar(&o.Processes, "processes", false, "run each service, etcd included, as a process of its own")
	fs.IntVar(&o.PortBase, "port-base", dev.DefaultPortBase, "first of the 200 ports that the mesh uses; gateway-1 is there")
	fs.BoolVar(&o.PerProcessIP, "per-process-ip", false, "give each process a 127.x address of its own to listen on and dial from")
	fs.StringArrayVar(&o.Set, "set", nil, "a setting, service[.n].key=value; may be repeated")
	fs.StringVar(&o.BinDir, "bin-dir", "", "folder of the services' binaries for --processes (default: that of leat)")
	cmd.AddCommand(newDevVerb(a, "restart", "Stop a service of a running mesh with SIGTERM if it runs, start it, and wait until it is ready"),
		newDevVerb(a, "stop", "Stop a service of a running mesh with SIGTERM"),
		newDevVerb(a, "start", "Start a service of a running mesh that does not run, and wait until it is ready"))
	return cmd
}

const devLong = `Run all services and an embedded etcd, in one process or, with --processes, in a
process each. It prints a line with "ready" and the gateway's address; SIGTERM or
Ctrl-C stops everything in order, a second one kills. It never starts a service
again by itself.

Each kind has a block of 20 ports from --port-base P (default 5328); instance n
has the n-th port of its block:
  gateway P, controller P+20, coordinator P+40, broker P+60, etcd P+80 (for its
  peers P+100); operations HTTP: gateway P+120, controller P+140, coordinator
  P+160, broker P+180
With --per-process-ip the address is 127.0.K.n, with K 1 for etcd, 2 controller,
3 coordinator, 4 broker, 5 gateway, and each process also dials from it.

The data folder holds
  <service>-<n>/           what the process keeps; a broker's logs are in
                           broker-<n>/<topic>-<partition>/
  run/dev.pid              process id of leat dev
  run/<service>-<n>.pid    process id of a service, with --processes
  run/<service>-<n>.addr   its address, host:port, written when it listens
  run/dev.lock, dev.sock   the lock of the folder; where restart, stop and start ask
  log/<service>-<n>.log    its log
The same folder may be started again with other ports and other numbers of
services, except etcds. Broker n has broker id n.

--set gives a service (broker, controller, coordinator or gateway), or one of its
instances, a setting, such as broker.lease.ttl=3s or broker.2.rack=b; "broker
--help" lists them.`

func newDevVerb(a *app, verb, short string) *cobra.Command {
	var data string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: verb + " SERVICE-N", Short: short, Args: args("SERVICE-N"),
		Example: fmt.Sprintf("  leat dev %s broker-1 --data D", verb),
		RunE: func(cmd *cobra.Command, given []string) error {
			if data == "" {
				return exit.Usage("Name the folder that `leat dev` printed.", "--data is missing")
			}
			a.requestTimeout = timeout
			ctx, cancel := a.callContext(cmd.Context())
			defer cancel()
			if err := dev.Control(ctx, data, verb, given[0]); err != nil {
				return err
			}
			past := map[string]string{"restart": "restarted", "stop": "stopped", "start": "started"}[verb]
			return a.done(given[0], past, past+" "+given[0])
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "data folder of the running mesh")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return cmd
}

// newEtcdCommand is what `leat dev --processes` runs for each etcd member.
func newEtcdCommand(a *app) *cobra.Command {
	c := dev.EtcdConfig{Log: "stderr"}
	cmd := &cobra.Command{
		Use: "etcd", Hidden: true, Short: "Run one etcd member of leat dev", Args: args(),
		Example: "  leat etcd --name=etcd-1 --dir=D/etcd-1 --listen=127.0.0.1:5408 --peer=127.0.0.1:5428 --initial-cluster=etcd-1=http://127.0.0.1:5428",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer a.cancelOnInterrupt(ctx, cancel)()
			err := dev.RunEtcd(ctx, c, func() {})
			if err == nil && cmd.Context().Err() == nil {
				return nil
			}
			return exit.With(exit.Failed, err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&c.Name, "name", "", "name of the member")
	fs.StringVar(&c.Dir, "dir", "", "its data folder")
	fs.StringVar(&c.Listen, "listen", "", "address for clients")
	fs.StringVar(&c.Peer, "peer", "", "address for other members")
	fs.StringVar(&c.Source, "source", "", "IP address to reach other members from")
	fs.StringVar(&c.InitialCluster, "initial-cluster", "", "all members, name=http://host:port with commas between")
	fs.StringVar(&c.AddrFile, "addr-file", "", "file that gets the address once it serves")
	return cmd
}

// commandName is how this command was called, for examples that can be typed.
func commandName() string {
	name := os.Args[0]
	if strings.Contains(name, string(filepath.Separator)) {
		return name
	}
	return "leat"
}
