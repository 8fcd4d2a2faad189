// A device plugin that advertises GPUs which are not there.
//
// It speaks the kubelet's device plugin protocol as the vendor's own plugin does, so that pods get distinct devices,
// named in NVIDIA_VISIBLE_DEVICES, and a pod too many waits. It ends when the kubelet restarts, since the kubelet has
// then forgotten it; whoever supervises it starts it again.
//
//	gpu-device-plugin --count 16
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resourceName = "nvidia.com/gpu"

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

func devices(count int) []*api.Device {
	all := make([]*api.Device, count)
	for index := range all {
		all[index] = &api.Device{ID: fmt.Sprintf("GPU-%02d", index), Health: api.Healthy}
	}
	return all
}

func serve(socket string, count int) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{devices: devices(count)})
	go func() { log.Fatal(server.Serve(listener)) }()
	return nil
}

func register(socket string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     filepath.Base(socket),
		ResourceName: resourceName,
		Options:      &api.DevicePluginOptions{},
	})
	return err
}

// The kubelet empties its plugin directory when it starts, so a lost socket means that this plugin is forgotten.
func waitForKubeletRestart(socket string) {
	for {
		if _, err := os.Stat(socket); err != nil {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func main() {
	count := flag.Int("count", 16, "how many GPUs to advertise")
	flag.Parse()
	socket := filepath.Join(api.DevicePluginPath, "localcluster-gpu.sock")
	if err := serve(socket, *count); err != nil {
		log.Fatalf("cannot serve at %s: %v", socket, err)
	}
	if err := register(socket); err != nil {
		log.Fatalf("cannot register with the kubelet: %v", err)
	}
	log.Printf("advertising %d %s", *count, resourceName)
	waitForKubeletRestart(socket)
	log.Print("the kubelet has restarted")
}
