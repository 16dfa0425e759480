// Package service is what all of Leat's processes have in common: the settings,
// the listener, and the whole of main.
//
// The duties of a service's package, in order:
//
//  1. Config embeds Common; DefaultConfig calls config.SetDefaults; its Validate,
//     if it has one, joins Common's.
//  2. New checks the config, takes its listener from Listen and its loggers and
//     providers from Deps, and starts nothing.
//  3. Run blocks until its context ends, and stops within shutdown.timeout.
//  4. Ready is closed once the service serves; Addr is where.
//
// Main does the rest; the main function of a service is one call of it.
package service
