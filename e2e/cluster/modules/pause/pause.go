// Pause holds a pod's namespaces open: it waits until it is told to stop.
// As the first process of a pod it also collects children that nobody waits for.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for collected := 1; collected > 0; {
			collected, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
