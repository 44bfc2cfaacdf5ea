package daemon

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
)

func registerProcess(r *prometheus.Registry) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// announce prints one line when a daemon is ready, for people and for scripts
// that wait for it.
func announce(cmd *cobra.Command, name string) func(address, httpAddress string) {
	return func(address, httpAddress string) {
		line := name + " ready at " + address
		if httpAddress != "" {
			line += ", metrics at http://" + httpAddress + "/metrics"
		}
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
}
