package dev

import (
	"errors"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/service"
)

// kind is what dev needs to know of a service's package.
type kind struct {
	// check refuses unknown keys and values that do not parse.
	check func(settings map[string]string) error
	// validate has the service look at its settings as a whole.
	validate func(settings map[string]string) error
	// build makes the service in this process; edit may change its common
	// settings before.
	build func(settings map[string]string, edit func(*service.Common), deps service.Deps) (service.Service, error)
	// common gives the common settings that result.
	common func(settings map[string]string) (*service.Common, error)
}

// kindOf describes a service by its default config and constructor.
func kindOf[C any, P service.Config[C], S service.Service](defaults func() C, build func(C, service.Deps) (S, error)) kind {
	apply := func(settings map[string]string) (C, error) {
		cfg := defaults()
		var errs []error
		for key, value := range settings {
			errs = append(errs, config.Set(&cfg, key, value))
		}
		return cfg, errors.Join(errs...)
	}
	return kind{
		check: func(settings map[string]string) error {
			_, err := apply(settings)
			return err
		},
		validate: func(settings map[string]string) error {
			cfg, err := apply(settings)
			if err != nil {
				return err
			}
			if v, ok := any(&cfg).(interface{ Validate() error }); ok {
				return v.Validate()
			}
			return nil
		},
		build: func(settings map[string]string, edit func(*service.Common), deps service.Deps) (service.Service, error) {
			cfg, err := apply(settings)
			if err != nil {
				return nil, err
			}
			edit(P(&cfg).Base())
			return build(cfg, deps)
		},
		common: func(settings map[string]string) (*service.Common, error) {
			cfg, err := apply(settings)
			return P(&cfg).Base(), err
		},
	}
}
